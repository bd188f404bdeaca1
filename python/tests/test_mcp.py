"""Tools for agents, with the official client: over stdio and over HTTP."""

import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from conftest import DOG
from mcp import Client, StdioServerParameters

COMMAND = str(Path(sys.executable).with_name("pellucid"))
TOOLS = ["describe", "sites", "run", "explain", "generate", "lens", "sweep"]


@asynccontextmanager
async def stdio(**options):
    async with Client(StdioServerParameters(command=COMMAND, args=["mcp"]), **options) as client:
        yield client


@asynccontextmanager
async def http(**options):
    command = [COMMAND, "serve", "--addr", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            address = server.stdout.readline().strip().removesuffix("/v1")
            async with Client(f"{address}/mcp", **options) as client:
                yield client
        finally:
            server.terminate()
            assert server.wait(timeout=60) == 0


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("connect", [stdio, http])
def test_every_tool_answers_as_its_schema_says(connect, mode):
    async def check():
        async with connect(mode=mode) as client:
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools] == TOOLS
            for tool in tools:
                # The client compares the answer with the schema of the tool.
                result = await client.call_tool(tool.name, tool.input_schema["examples"][0])
                assert not result.is_error, (tool.name, result)
                assert result.structured_content
                assert result.content[0].text

    anyio.run(check)


def test_the_numbers_are_those_of_python(model):
    plan = {"taps": [{"site": "layers.1.mlp_out", "zero": True}]}
    captures = model.run(DOG, plan, capture="layers.2.resid_post", positions="last")
    expected = captures["layers.2.resid_post"][0]

    async def check():
        async with stdio() as client:
            capture = [{"site": "layers.2.resid_post", "positions": "last"}]
            arguments = {"prompt": DOG, "plan": plan, "capture": capture, "max_values": 128}
            result = await client.call_tool("run", arguments)
            values = result.structured_content["results"][0]["values"]
            assert expected.astype("float32").tolist() == [float(expected.dtype.type(value)) for value in values]

    anyio.run(check)


@pytest.mark.parametrize("connect", [stdio, http])
def test_errors_and_progress_reach_the_client(connect):
    reports = []

    async def note(done, total, message):
        reports.append((done, total))

    async def check():
        async with connect() as client:
            wrong = await client.call_tool("run", {"prompt": DOG, "capture": ["layers.9.z"]})
            assert wrong.is_error
            assert "layers are 0 to 5" in wrong.content[0].text
            template = {
                "plan": {"taps": [{"site": "layers.{layer}.z", "heads": ["{head}"], "zero": True}]},
                "over": {"layer": list(range(6)), "head": list(range(4))},
            }
            arguments = {"prompt": DOG, "template": template, "metric": {"token": " dog"}}
            swept = await client.call_tool("sweep", arguments, progress_callback=note)
            assert len(swept.structured_content["results"]) == 24
            assert reports

    anyio.run(check)
