"""The fixture report of sessions that fail, are interrupted, or run on several workers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fixture_reports import PLUGIN, read, rows, run

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def only_this_plugin(monkeypatch):
    """Other plugins of this environment would add fixtures of their own to the reports."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


PROBLEMS = """
    import pytest

    @pytest.fixture
    def broken():
        raise ValueError("no database\\nsecond line")

    @pytest.fixture
    def needs_broken(broken): pass

    @pytest.fixture
    def absent():
        pytest.skip("no GPU here")

    @pytest.fixture
    def bad_teardown():
        yield
        raise OSError("cannot delete")

    @pytest.fixture
    def depends(bad_teardown):
        yield

    @pytest.fixture(params=[0, 1, 2])
    def sometimes(request):
        assert request.param != 1

    @pytest.fixture
    def fine(): pass

    def test_broken(needs_broken): pass
    def test_absent(absent): pass
    def test_teardown(depends): pass
    def test_sometimes(sometimes, fine): pass
"""


def test_failures_have_a_status(pytester):
    pytester.makepyfile(PROBLEMS)
    run(pytester).assert_outcomes(passed=3, errors=3, skipped=1)
    found = rows(pytester)
    assert {name: row["status"] for name, row in found.items()} == {
        "broken": "failed",
        "needs_broken": "not run (broken failed)",
        "absent": "skipped",
        "bad_teardown": "teardown failed",
        "depends": "ok",
        "sometimes": "failed (1 of 3)",
        "fine": "ok",
    }
    assert found["fine"]["setups"] == 2
    (problem,) = found["broken"]["problems"]
    assert problem["message"] == "ValueError: no database"
    assert problem["test"].endswith("::test_broken")
    assert found["bad_teardown"]["problems"][0]["message"] == "OSError: cannot delete"
    assert found["absent"]["problems"][0]["message"] == "Skipped: no GPU here"
    assert read(pytester)["session"]["ended"] == "some tests failed"


def test_the_outcome_of_a_session_is_the_same_with_a_report(pytester):
    """Control for the hooks: failures, skips and their order do not depend on measuring."""
    pytester.makepyfile(PROBLEMS)
    plain = pytester.runpytest_subprocess("-v", "-p", "no:cacheprovider")
    measured = run(pytester, "-v", "-p", "no:cacheprovider")
    assert plain.ret == measured.ret
    assert plain.parseoutcomes() == measured.parseoutcomes()

    def outcomes(result):
        return [
            line
            for line in result.outlines
            if "::" in line and ("PASSED" in line or "ERROR" in line or "SKIPPED" in line)
        ]

    assert outcomes(plain) == outcomes(measured)


def test_a_session_that_collects_only_reports_uses(pytester):
    pytester.makepyfile(PROBLEMS)
    run(pytester, "--collect-only")
    found = rows(pytester)
    assert found["fine"]["uses"] == 3
    assert found["fine"]["status"] == "not run"
    assert found["fine"]["init_seconds"] is None


HANG = """
    import pathlib
    import time
    import pytest

    @pytest.fixture
    def quick():
        time.sleep(0.01)

    @pytest.fixture(scope="session")
    def open_resource():
        yield
        time.sleep(0.05)

    @pytest.fixture
    def hangs(quick, open_resource):
        pathlib.Path("hanging").touch()
        time.sleep(60)

    def test_quick(quick): pass
    def test_hangs(hangs): pass
"""


def interrupt(pytester, number):
    """Starts pytest, sends a signal while a fixture hangs, and returns the exit code."""
    command = [sys.executable, "-m", "pytest", *PLUGIN, "--pellucid-fixtures=report.json"]
    process = subprocess.Popen(command, cwd=pytester.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 60
        while not Path(pytester.path, "hanging").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        process.communicate(timeout=30)
    finally:
        process.kill()
    return process.returncode


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_ctrl_c_in_a_hanging_fixture_writes_the_report(pytester):
    pytester.makepyfile(HANG)
    assert interrupt(pytester, signal.SIGINT) == pytest.ExitCode.INTERRUPTED
    found = rows(pytester)
    assert found["hangs"]["status"] == "interrupted"
    assert found["quick"]["status"] == "ok"
    assert found["quick"]["setups"] == 2
    # The last teardowns are in the report.
    assert found["open_resource"]["teardown_seconds"] >= 0.05
    assert read(pytester)["session"]["ended"] == "interrupted"


@pytest.mark.skipif(sys.platform == "win32", reason="no such signals")
def test_termination_in_a_hanging_fixture_writes_the_report(pytester):
    pytester.makepyfile(HANG)
    assert interrupt(pytester, signal.SIGTERM) == -signal.SIGTERM
    found = rows(pytester)
    assert found["hangs"]["status"] == "running"
    assert found["quick"]["setups"] == 2
    assert read(pytester)["session"]["ended"] == "terminated by SIGTERM"


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_termination_of_a_forked_child_writes_no_report(pytester):
    pytester.makepyfile("""
        import os
        import signal
        import time

        def test_child():
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            os.kill(child, signal.SIGTERM)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
            assert not os.path.exists("report.json")
    """)
    run(pytester).assert_outcomes(passed=1)


def test_a_killed_process_leaves_the_last_checkpoint(pytester):
    pytester.makeconftest("""
        import pellucid_pytest.reporter
        pellucid_pytest.reporter.CHECKPOINT_SECONDS = 0
        pellucid_pytest.reporter.CHECKPOINT_SECONDS_PER_FIXTURE = 0
    """)
    pytester.makepyfile("""
        import os
        import pytest

        @pytest.fixture
        def quick(): pass

        @pytest.fixture
        def kills(quick):
            os._exit(1)

        def test_kills(kills): pass
    """)
    run(pytester)
    found = rows(pytester)
    assert found["kills"]["status"] == "running"
    assert found["quick"]["status"] == "ok"
    session = read(pytester)["session"]
    assert session["ended"] == "still running"
    assert session["notes"]


DISTRIBUTED = """
    import time
    import pytest

    @pytest.fixture(scope="session")
    def once_per_worker():
        time.sleep(0.05)
        yield
        time.sleep(0.05)

    @pytest.fixture
    def every_test():
        time.sleep(0.01)

    @pytest.fixture(scope="session")
    def on_request(): pass

    @pytest.fixture
    def unused(): pass

    @pytest.mark.parametrize("number", range(20))
    def test_number(once_per_worker, every_test, number, request):
        request.getfixturevalue("on_request")
"""


def test_workers_send_their_records_to_the_controller(pytester):
    pytest.importorskip("xdist")
    pytester.makepyfile(DISTRIBUTED)
    run(pytester, "-p", "xdist", "-n", "2").assert_outcomes(passed=20)
    report, found = read(pytester), rows(pytester)
    assert report["session"]["workers"] == 2
    assert report["session"]["tests"] == 20
    every = found["every_test"]
    assert (every["uses"], every["setups"]) == (20, 20)
    assert 0.01 <= every["shortest_seconds"] < 0.03
    once = found["once_per_worker"]
    assert (once["uses"], once["setups"]) == (20, 2)
    assert 0.1 <= once["teardown_seconds"] < 0.5
    assert found["on_request"]["dynamic_uses"] == 20
    assert found["unused"]["status"] == "unused"
    # The same numbers as in one process.
    run(pytester).assert_outcomes(passed=20)
    for name, row in rows(pytester).items():
        assert (row["uses"], row["type"], row["category"]) == tuple(
            found[name][key] for key in ("uses", "type", "category")
        )


def test_a_worker_that_crashes_loses_only_its_last_events(pytester):
    pytest.importorskip("xdist")
    pytester.makepyfile("""
        import os
        import pytest

        @pytest.fixture
        def every_test(): pass

        @pytest.fixture
        def crashes():
            os._exit(1)

        @pytest.mark.parametrize("number", range(6))
        def test_number(every_test, number): pass

        def test_crash(crashes): pass
    """)
    run(pytester, "-p", "xdist", "-n", "1").assert_outcomes(passed=6, failed=1)
    report, found = read(pytester), rows(pytester)
    assert found["every_test"]["setups"] == 6
    assert found["crashes"]["status"] == "not run"
    assert any("ended without its last events" in note for note in report["session"]["notes"])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("report.txt", "--pellucid-fixtures=report.txt: unknown report format `.txt`"),
        ("report", "--pellucid-fixtures=report: the file name has no extension"),
        ("folder.md", "--pellucid-fixtures=folder.md: this is a directory"),
        ("file/report.md", "--pellucid-fixtures=file/report.md: cannot write to *"),
    ],
)
def test_a_wrong_file_is_an_error_before_any_test(pytester, argument, message):
    pytester.mkdir("folder.md")
    pytester.path.joinpath("file").touch()
    pytester.makepyfile("def test_nothing(): pass")
    result = run(pytester, report=argument)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{message.replace('[', '[[]')}*", "*hint: *"])


def test_a_wrong_category_line_is_an_error(pytester):
    pytester.makeini("[pytest]\npellucid_fixture_categories = Real Model: gpt2\n")
    result = run(pytester)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*pellucid_fixture_categories: cannot read the line `Real Model: gpt2`*", "*hint: *"])


def test_a_file_that_cannot_be_written_is_reported_and_the_others_are(pytester):
    pytester.makepyfile("""
        import os

        def test_nothing():
            os.rmdir("folder")
    """)
    result = run(pytester, "--pellucid-fixtures=folder/report.md")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["error: cannot write the fixture report *report.md*"])
    assert read(pytester)["session"]["ended"] == "all tests passed"


def test_tests_that_use_up_file_descriptors_do_not_fail_the_measurement(pytester):
    pytest.importorskip("resource")
    pytester.makepyfile("""
        import os
        import resource
        import pytest

        @pytest.fixture
        def exhausts():
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
            opened = []
            try:
                while True:
                    opened.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                pass
            yield
            for number in opened:
                os.close(number)

        @pytest.fixture
        def after(exhausts): pass

        def test_after(after): pass
    """)
    run(pytester).assert_outcomes(passed=1)
    assert rows(pytester)["after"]["status"] == "ok"


def test_no_temporary_file_remains(pytester):
    pytester.makepyfile("def test_nothing(): pass")
    run(pytester)
    assert sorted(name for name in os.listdir(pytester.path) if "report" in name) == ["report.json"]
    json.loads(pytester.path.joinpath("report.json").read_text(encoding="utf-8"))
