"""Common start of every peer's worker: reads one JSON request from stdin, writes one JSON answer to
stdout (see protocol.rs). The lab prepends it to the peer's program, which ends with `reply(main)`."""
import json, math, os, sys, time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
request, answer_to = json.load(sys.stdin), os.dup(1)
os.dup2(2, 1)  # libraries may print; stdout is reserved for the answer
path, job, tokens = request["model"], request["job"], request["tokens"]
name, job = (job, {}) if isinstance(job, str) else next(iter(job.items()))
# Rows of a batch have equal length: each is the prompt rotated by one more token.
rows = [tokens[row:] + tokens[:row] for row in (r % len(tokens) for r in range(job.get("rows", 1)))]
COMPARED = 4096


def status(key, file="/proc/self/status"):
    with open(file) as f:
        return next((int(line.split()[1]) * 1024 for line in f if line.startswith(key + ":")), 0)


def number(x):
    x = float(x)
    return x if math.isfinite(x) else str(x)  # JSON has no non-finite numbers


def direction(width):
    """Returns the steering vector, the same fixed values for every worker."""
    return [((i * 37 % 101) / 50.0 - 1.0) * 0.5 for i in range(width)]


def measured(timed):
    """Runs `timed` (returns seconds, decoded tokens, output) as often as requested. Returns the measurements and the last output."""
    memory, samples = dict(load=status("VmHWM")), []
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")
    for index in range(request["warmups"] + request["repeats"]):
        seconds, decoded, made = timed()
        if index >= request["warmups"]:
            samples.append(seconds)
    memory |= dict(run=status("VmHWM"), anonymous=status("RssAnon"), file=status("RssFile"), proportional=status("Pss", "/proc/self/smaps_rollup"))
    return dict(samples_s=samples, peak_bytes=max(memory["load"], memory["run"]), memory=memory, decoded=decoded), made


def reply(main):
    try:
        answer = json.dumps(main())
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
    with os.fdopen(answer_to, "w") as out:
        out.write(answer)


