"""The pytest plugin measures fixtures: times, memory, uses, categories."""

import html.parser
import json
import re
import sys

import pytest
from fixture_reports import MIB, PLUGIN, read, rows, run

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def only_this_plugin(monkeypatch):
    """Other plugins of this environment would add fixtures of their own to the reports."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_times_are_own_times(pytester):
    """A setup excludes the fixtures that it requests by argument or in its body, and its teardown
    the teardowns of others.
    """
    pytester.makepyfile("""
        import time
        import pytest

        @pytest.fixture
        def slow():
            time.sleep(0.05)
            yield
            time.sleep(0.03)

        @pytest.fixture
        def needs_slow(slow):
            time.sleep(0.02)

        @pytest.fixture
        def inner():
            time.sleep(0.05)
            yield
            time.sleep(0.05)

        @pytest.fixture
        def requests_in_body(request):
            time.sleep(0.01)
            request.getfixturevalue("inner")
            yield
            time.sleep(0.01)

        @pytest.mark.parametrize("number", range(5))
        def test_slow(needs_slow, number): pass

        @pytest.mark.parametrize("number", range(5))
        def test_dynamic(requests_in_body, number): pass
    """)
    run(pytester).assert_outcomes(passed=10)
    found = rows(pytester)
    # A loaded machine delays some setups, so the bounds above apply to the fastest of five.
    assert 0.05 <= found["slow"]["shortest_seconds"] < 0.08
    assert 0.02 <= found["needs_slow"]["shortest_seconds"] < 0.04
    assert 0.05 <= found["inner"]["shortest_seconds"] < 0.08
    assert 0.01 <= found["requests_in_body"]["shortest_seconds"] < 0.04
    for name in ("slow", "inner"):
        row = found[name]
        assert row["shortest_seconds"] <= row["init_seconds"] <= row["longest_seconds"]
        assert row["setup_seconds"] == pytest.approx(5 * row["init_seconds"])
    assert 0.15 <= found["slow"]["teardown_seconds"] < 0.3
    assert found["needs_slow"]["teardown_seconds"] == 0
    assert 0.05 <= found["requests_in_body"]["teardown_seconds"] < 0.2
    # The dependencies' time is reported apart.
    total = found["slow"]["init_seconds"] + found["needs_slow"]["init_seconds"]
    assert found["needs_slow"]["with_dependencies_seconds"] == pytest.approx(total)
    assert found["needs_slow"]["dependencies"] == ["slow"]
    assert found["requests_in_body"]["dependencies"] == ["inner"]
    assert found["requests_in_body"]["with_dependencies_seconds"] >= 0.06


def test_a_finalizer_that_a_test_adds_is_part_of_the_teardown(pytester):
    pytester.makepyfile("""
        import time
        import pytest

        @pytest.fixture
        def make(request):
            return lambda: request.addfinalizer(lambda: time.sleep(0.05))

        def test_make(make):
            make()
            make()
    """)
    run(pytester).assert_outcomes(passed=1)
    make = rows(pytester)["make"]
    assert 0.1 <= make["teardown_seconds"] < 0.2
    assert make["init_seconds"] < 0.05


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_and_peak(pytester):
    pytester.makepyfile(f"""
        import pytest

        def allocate():
            return bytearray(b"x") * (64 * {MIB})

        @pytest.fixture(scope="session")
        def kept():
            return allocate()

        @pytest.fixture
        def freed():
            allocate()

        @pytest.fixture
        def freed_and_requests(request):
            allocate()
            return request.getfixturevalue("kept_too")

        @pytest.fixture
        def kept_too():
            return allocate()

        @pytest.fixture
        def small():
            return 1

        def test_first(kept): pass
        def test_second(freed, small): pass
        def test_third(freed_and_requests): pass
    """)
    run(pytester).assert_outcomes(passed=3)
    found = rows(pytester)
    allocated = range(60 * MIB, 70 * MIB)
    nothing = range(-4 * MIB, 4 * MIB)
    assert found["kept"]["memory_bytes"] in allocated
    assert found["kept"]["peak_bytes"] in allocated
    assert found["freed"]["memory_bytes"] in nothing
    # The peak of the process is higher since `kept`; a reset shows the peak of this setup.
    assert found["freed"]["peak_bytes"] in allocated
    assert found["small"]["memory_bytes"] in nothing
    assert found["small"]["peak_bytes"] in nothing
    assert found["kept_too"]["memory_bytes"] in allocated
    assert found["freed_and_requests"]["memory_bytes"] in nothing
    assert found["freed_and_requests"]["peak_bytes"] in allocated
    assert [row["name"] for row in read(pytester)["most_memory"]][:2] in (["kept", "kept_too"], ["kept_too", "kept"])


def test_without_proc_the_memory_columns_say_so(pytester):
    pytester.makeconftest("""
        import pellucid_pytest.memory
        pellucid_pytest.memory.PROC = "/nonexistent"
    """)
    pytester.makepyfile("""
        import pytest

        @pytest.fixture
        def large():
            return bytearray(b"x") * (512 * 2**20)

        def test_large(large): pass
    """)
    run(pytester).assert_outcomes(passed=1)
    large = rows(pytester)["large"]
    assert large["memory_bytes"] is None
    if sys.platform != "win32":
        # The kernel's peak of a new process starts at the memory of the process that started it,
        # so part of the growth is hidden.
        assert 256 * MIB < large["peak_bytes"] < 520 * MIB
        assert read(pytester)["session"]["memory"].startswith("getrusage")


def test_gpu_memory_is_read_from_a_torch_that_is_imported(pytester):
    """This test provides a module `torch`; the plugin uses no other functions of it."""
    pytester.makepyfile(
        torch="""
        allocated = [0, 0]
        class cuda:
            is_initialized = staticmethod(lambda: any(allocated))
            device_count = staticmethod(lambda: 2)
            memory_allocated = staticmethod(lambda device: allocated[device])
            get_device_name = staticmethod(lambda device: f"Test GPU {device}")
        """,
        test_gpu="""
        import pytest

        @pytest.fixture
        def before():
            import torch

        @pytest.fixture
        def on_gpu():
            import torch
            torch.allocated[1] += 512_000_000

        @pytest.fixture
        def after(): pass

        def test_gpu(before, on_gpu, after): pass
        """,
    )
    run(pytester).assert_outcomes(passed=1)
    found = rows(pytester)
    assert {name: found[name]["gpu_bytes"] for name in found} == {"before": None, "on_gpu": 512_000_000, "after": 0}
    assert read(pytester)["session"]["gpu"] == "Test GPU 0"
    run(pytester, report="report.md")
    page = (pytester.path / "report.md").read_text(encoding="utf-8")
    assert "**GPU Device:** Test GPU 0" in page
    assert re.search(r"^\| on_gpu \|.*\| 512\.0 \| ✅ ok \|$", page, flags=re.MULTILINE)
    assert re.search(r"^\| before \|.*\| - \| ✅ ok \|$", page, flags=re.MULTILINE)


def test_uses_scopes_and_types(pytester):
    pytester.makeconftest("""
        import pytest

        @pytest.fixture(scope="session")
        def base(): return 1

        @pytest.fixture(scope="module")
        def module_value(base): return base

        @pytest.fixture(scope="class")
        def class_value(): yield 2

        @pytest.fixture(scope="package", params=["a", "b", "c"], ids=["first", "second", None])
        def letter(request): return request.param

        @pytest.fixture(autouse=True)
        def everywhere(): pass

        @pytest.fixture(scope="session")
        def on_request(): return 3

        @pytest.fixture
        def indirect(request): return request.param

        @pytest.fixture
        def value(): return 1

        @pytest.fixture
        def never(base): pass

        @pytest.fixture
        def only_by_never(): pass
    """)
    pytester.makepyfile(
        test_one="""
        import pytest

        @pytest.fixture
        def value(value): return value + 1

        class TestClass:
            def test_a(self, class_value, module_value): pass
            def test_b(self, class_value): pass

        def test_letter(letter): pass

        @pytest.mark.parametrize("other", [1, 2])
        def test_dynamic(request, other):
            request.getfixturevalue("on_request")

        @pytest.mark.parametrize("indirect", ["x", "y"], indirect=True)
        def test_indirect(indirect): pass

        def test_value(value): assert value == 2
        """,
        test_two="""
        import pytest

        @pytest.mark.usefixtures("module_value")
        def test_c(tmp_path): pass

        def test_value(value): assert value == 1

        def test_deselected(only_by_never): pass
        """,
    )
    run(pytester, "-k", "not deselected").assert_outcomes(passed=12, deselected=1)
    report = read(pytester)
    found = {(row["name"], row["location"].split(":")[0]): row for row in report["fixtures"]}

    def facts(name, path="conftest.py"):
        row = found[name, path]
        return row["uses"], row["setups"], row["scope"], row["type"], row["status"]

    assert facts("base") == (2, 1, "session", "static", "ok")
    assert facts("module_value") == (2, 2, "module", "static", "ok")
    assert facts("class_value") == (2, 1, "class", "static, yield", "ok")
    assert facts("letter") == (3, 3, "package", "static, 3 params", "ok")
    assert facts("everywhere") == (12, 12, "function", "static, autouse", "ok")
    assert facts("on_request") == (2, 1, "session", "dynamic", "ok")
    assert facts("indirect") == (2, 2, "function", "static, 2 params", "ok")
    # The module's fixture overrides the one of conftest.py and requests it.
    assert facts("value") == (2, 2, "function", "static", "ok")
    assert facts("value", "test_one.py") == (1, 1, "function", "static", "ok")
    assert facts("never") == (0, 0, "function", "static", "unused")
    assert facts("only_by_never") == (0, 0, "function", "static", "unused")
    assert found["tmp_path", "_pytest.tmpdir"]["category"] == "pytest"
    assert [param["id"] for param in found["letter", "conftest.py"]["params"]] == ["first", "second", "c"]
    assert sorted(report["unused"]) == ["never", "only_by_never"]
    assert not any(name in ("other", "number") for name, _ in found), "an argument of parametrize is no fixture"
    summary = report["summary"]
    assert (summary["used"], summary["unused"]) == (len(report["fixtures"]) - 2, 2)
    assert summary["unused_plugin_fixtures"] > 5
    by_scope = {row["name"]: (row["count"], row["used"]) for row in summary["by_scope"]}
    assert by_scope["module"] == (1, 1)
    assert by_scope["class"] == (1, 1)
    assert list(by_scope) == ["session", "package", "module", "class", "function"]
    assert report["session"]["tests"] == 12
    assert report["session"]["deselected"] == 1


def test_a_fixture_of_a_base_class_has_one_row(pytester):
    pytester.makepyfile("""
        import unittest
        import pytest

        class Base:
            @pytest.fixture
            def shared(self): return 1

        class TestA(Base):
            def test_a(self, shared): pass

        class TestB(Base):
            def test_b(self, shared): pass

        class TestUnit(unittest.TestCase):
            @classmethod
            def setUpClass(cls): cls.ready = True
            def test_ready(self): assert self.ready

        def setup_module(): pass
    """)
    run(pytester).assert_outcomes(passed=3)
    found = rows(pytester)
    assert (found["shared"]["uses"], found["shared"]["setups"]) == (2, 2)
    by_category = {row["name"]: row["count"] for row in read(pytester)["summary"]["by_category"]}
    assert by_category == {"Test module": 1, "xUnit setup": 2}


def test_categories(pytester):
    pytester.makeini("""
        [pytest]
        pellucid_fixture_categories =
            Real Model = gpt2* llama*
            Data = data/*
    """)
    pytester.makeconftest("""
        import pytest
        from pellucid_pytest import category
        from data.files import corpus

        @pytest.fixture
        def gpt2_small(): pass

        @pytest.fixture
        @category("Server")
        def llama_server(): yield

        @pytest.fixture
        def plain(): pass
    """)
    pytester.mkpydir("data").joinpath("files.py").write_text("import pytest\n@pytest.fixture\ndef corpus(): pass\n")
    pytester.makepyfile("""
        import pytest
        from helpers import helper

        @pytest.fixture
        def local(): pass

        def test_all(gpt2_small, llama_server, plain, local, corpus, helper, monkeypatch): pass
    """)
    pytester.makepyfile(helpers="import pytest\n@pytest.fixture\ndef helper(): pass\n")
    run(pytester).assert_outcomes(passed=1)
    assert {name: row["category"] for name, row in rows(pytester).items()} == {
        "gpt2_small": "Real Model",
        "llama_server": "Server",
        "plain": "Project conftest",
        "local": "Test module",
        "corpus": "Data",
        "helper": "Project module",
        "monkeypatch": "pytest",
    }


SAMPLE = """
    import time
    import pytest

    @pytest.fixture
    def often():
        time.sleep(0.02)

    @pytest.fixture(scope="session", params=["<b>bold</b>", "a|b"])
    def once(request):
        time.sleep(0.03)

    @pytest.fixture
    def unused(): pass

    @pytest.mark.parametrize("number", range(10))
    def test_often(often, number): pass

    def test_once(once): pass
"""

HEADINGS = [
    "Fixture Benchmark Report",
    "Summary Statistics",
    "By Category",
    "By Scope",
    "Detailed Fixture Analysis",
    "By Parameter",
    "Performance Insights",
    "Slowest Fixtures (Top 2)",
    "Optimization Recommendations",
    "High-Impact Optimization Targets",
    "Unused Fixtures Consider for Removal",
]


def cells_of(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_markdown_has_the_numbers_of_json(pytester):
    pytester.makepyfile(SAMPLE)
    arguments = ["--pellucid-fixtures=folder/report.md", "--pellucid-fixtures=page.html"]
    result = run(pytester, *arguments)
    result.assert_outcomes(passed=12)
    result.stdout.fnmatch_lines(
        ["*= fixtures =*", "3 fixtures, 2 used: 0.* s in setup, 0.* s in teardown", "slowest: once*"]
    )
    report = read(pytester)
    page = (pytester.path / "folder" / "report.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", page, flags=re.MULTILINE)
    assert [heading for heading in headings if not heading.startswith("Most Memory")] == HEADINGS
    table = page.split("## Detailed Fixture Analysis")[1].split("### By Parameter")[0]
    lines = [cells_of(line) for line in table.splitlines() if line.startswith("|")]
    assert lines[0] == [
        *("Fixture Name", "Uses", "Setups", "Type", "Scope", "Category", "Init Time (s)", "With Deps (s)"),
        *("Teardown (s)", "Memory Δ (MB)", "Peak Δ (MB)", "GPU Δ (MB)", "Status"),
    ]
    for row, cells in zip(report["fixtures"], lines[2:], strict=True):
        assert cells[:6] == [
            row["name"],
            str(row["uses"]),
            str(row["setups"]),
            row["type"],
            row["scope"],
            row["category"],
        ]
        if row["setups"]:
            assert float(cells[6]) == pytest.approx(row["init_seconds"], abs=6e-4)
            assert cells[-1] == "✅ ok"
        else:
            assert cells[6:] == ["-"] * 6 + ["unused"]
    assert r"a\|b" in page
    assert r"\<b>bold" in page
    # Ten setups of 20 ms in a session of less than 20 s; all but one would be saved.
    target = report["targets"][0]
    assert target["name"] == "often"
    assert target["total_seconds"] >= 0.2
    assert target["saving_seconds"] == pytest.approx(target["total_seconds"] * 0.9)
    assert "session scope would save" in page
    assert report["targets"][1]["saving_seconds"] == 0
    assert [row["name"] for row in report["slowest"]] == ["once", "often"]


class Page(html.parser.HTMLParser):
    """Headings, table rows and addresses of a page."""

    def __init__(self):
        super().__init__()
        self.headings, self.rows, self.addresses, self.tags = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("href", "src")]
        if tag in ("h1", "h2", "h3"):
            self.headings.append("")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.headings and self.tags[-1] in ("h1", "h2", "h3"):
            self.headings[-1] += data
        if self.rows and self.rows[-1] and self.tags[-1] in ("td", "b", "small", "button"):
            self.rows[-1][-1] += data.strip()

    def handle_endtag(self, tag):
        self.tags.append(f"/{tag}")


def test_the_page_has_all_rows_and_no_external_resources(pytester):
    pytester.makepyfile(SAMPLE)
    run(pytester, "--pellucid-fixtures=report.html").assert_outcomes(passed=12)
    page = Page()
    page.feed((pytester.path / "report.html").read_text(encoding="utf-8"))
    assert [heading for heading in page.headings if not heading.startswith("Most Memory")] == HEADINGS
    assert page.addresses == []
    names = [row["name"] for row in read(pytester)["fixtures"]]
    start = next(index for index, row in enumerate(page.rows) if row[0] == "Fixture Name")
    shown = page.rows[start + 1 : start + 1 + len(names)]
    assert [row[0].split("test_")[0] for row in shown] == names
    assert shown[names.index("often")][1:6] == ["10", "10", "static", "function", "Test module"]
    assert "b" in page.tags
    parameters = [row[1] for row in page.rows if row[0] == "once"]
    assert sorted(parameters) == ["<b>bold</b>", "a|b"], "escaped, so the parser reads text"


def test_without_the_option_nothing_is_loaded(pytester):
    """Pytest imports the plugin in every project, so it must not slow others down."""
    pytester.makepyfile("""
        import sys

        def test_modules():
            loaded = {name.split(".")[0] for name in sys.modules}
            assert not loaded & {"numpy", "pellucid"}
            assert not [name for name in sys.modules if name.startswith("pellucid_pytest.")]
    """)
    pytester.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=1)
    # Control: with the option the modules are there, but still not the engine.
    pytester.makepyfile("""
        import sys

        def test_modules():
            assert "pellucid_pytest.recorder" in sys.modules
            assert "numpy" not in sys.modules
            assert "pellucid" not in sys.modules
    """)
    run(pytester).assert_outcomes(passed=1)


def test_pip_installs_the_plugin(pytester, monkeypatch):
    """The entry point of the installed package adds the option, without `-p`."""
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    result = pytester.runpytest_subprocess("--help")
    result.stdout.fnmatch_lines(["*--pellucid-fixtures=FILE*"])
    result.stdout.fnmatch_lines(["*pellucid_fixture_categories (linelist):*"])


def test_async_fixtures(pytester):
    pytest.importorskip("pytest_asyncio")
    pytester.makepyfile("""
        import asyncio
        import pytest_asyncio
        import pytest

        @pytest_asyncio.fixture
        async def plain():
            await asyncio.sleep(0.05)

        @pytest_asyncio.fixture
        async def generator():
            await asyncio.sleep(0.05)
            yield
            await asyncio.sleep(0.05)

        @pytest.mark.asyncio
        async def test_both(plain, generator): pass
    """)
    run(pytester, "-p", "pytest_asyncio.plugin").assert_outcomes(passed=1)
    found = rows(pytester)
    assert found["plain"]["type"] == "static, async"
    assert found["generator"]["type"] == "static, async yield"
    assert found["plain"]["init_seconds"] >= 0.05
    assert found["generator"]["init_seconds"] >= 0.05
    assert found["generator"]["teardown_seconds"] >= 0.05


def test_json_has_a_schema_version(pytester):
    pytester.makepyfile("def test_nothing(): pass")
    run(pytester).assert_outcomes(passed=1)
    text = (pytester.path / "report.json").read_text(encoding="utf-8")
    assert json.loads(text)["schema"] == 1
    assert "NaN" not in text
