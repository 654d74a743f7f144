"""All kinds of messages that notebooks and their kernels exchange pass as they do with a local kernel."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator

import pytest
from faces import Embedded
from kernels import Kernel, Message, numbered, started


@pytest.fixture
async def kernel(embedded_host: Embedded) -> AsyncIterator[Kernel]:
    """Return a kernel over ssh."""
    async with started(embedded_host.location()) as kernel:
        yield kernel


def iopub(kernel: Kernel, msg_type: str) -> list[Message]:
    """Return the messages of one type that belong to no cell."""
    return [message for channel, message in kernel.others if channel == "iopub" and message["msg_type"] == msg_type]


class TestQuestionsAndAnswers:
    async def test_input_asks_the_person_and_gets_the_answer(self, kernel: Kernel) -> None:
        """K4."""
        kernel.answer = lambda prompt: f"answer to {prompt}é"
        cell = await kernel.run("first = input('name? ')\nimport getpass\nprint([first, getpass.getpass('word? ')])")
        assert cell.stdout == "['answer to name? é', 'answer to word? é']\n"

    async def test_input_without_anybody_to_ask_is_an_error(self, kernel: Kernel) -> None:
        """K4."""
        cell = await kernel.run("input()", allow_stdin=False)
        assert cell.reply is not None
        assert cell.reply["ename"] == "StdinNotImplementedError"

    async def test_completion_inspection_history_and_kernel_info(self, kernel: Kernel) -> None:
        """K4."""
        await kernel.run("a_rather_long_name = 41", store_history=True)
        completion = await kernel.ask("complete_request", {"code": "a_rather_l", "cursor_pos": 10})
        assert completion["matches"] == ["a_rather_long_name"]
        inspection = await kernel.ask(
            "inspect_request", {"code": "a_rather_long_name", "cursor_pos": 3, "detail_level": 0}
        )
        assert "41" in inspection["data"]["text/plain"]
        history = await kernel.ask(
            "history_request", {"hist_access_type": "tail", "n": 1, "output": False, "raw": True}
        )
        assert history["history"][0][2] == "a_rather_long_name = 41"
        complete = await kernel.ask("is_complete_request", {"code": "for x in y:"})
        assert complete["status"] == "incomplete"
        info = await kernel.ask("kernel_info_request", channel="control")
        assert info["implementation"] == "ipython"

    async def test_a_kernel_that_is_busy_answers_on_control(self, kernel: Kernel) -> None:
        """K4."""
        cell = kernel.begin("input()")
        await cell.until(lambda: cell.asked)
        info = await kernel.ask("kernel_info_request", channel="control")
        assert info["status"] == "ok"
        kernel.client.input("")
        await cell.done()

    async def test_the_debugger_attaches(self, kernel: Kernel) -> None:
        """K4."""
        arguments = {"clientID": "test", "adapterID": "", "pathFormat": "path", "supportsVariableType": True}
        initialize = {"type": "request", "seq": 1, "command": "initialize", "arguments": arguments}
        answer = await kernel.ask("debug_request", initialize, "control")
        assert answer["success"], answer
        attach = {"type": "request", "seq": 2, "command": "attach", "arguments": {}}
        answer = await kernel.ask("debug_request", attach, "control")
        assert answer["success"], answer
        answer = await kernel.ask("debug_request", {"type": "request", "seq": 3, "command": "debugInfo"}, "control")
        assert answer["body"]["isStarted"]
        assert [each for each in iopub(kernel, "debug_event") if each["content"]["event"] == "initialized"]

    async def test_a_subshell_works_while_the_main_shell_is_busy(self, kernel: Kernel) -> None:
        """K4."""
        info = await kernel.ask("kernel_info_request")
        if "kernel subshells" not in info.get("supported_features", []):
            pytest.skip("this ipykernel has no subshells")
        made = await kernel.ask("create_subshell_request", channel="control")
        main = kernel.begin("x = input()")
        await main.until(lambda: main.asked)
        reply = await kernel.ask(
            "execute_request",
            {"code": "y = 6 * 7", "silent": False, "user_expressions": {"y": "y"}},
            subshell_id=made["subshell_id"],
        )
        assert reply["user_expressions"]["y"]["data"]["text/plain"] == "42"
        listed = await kernel.ask("list_subshell_request", channel="control")
        assert listed["subshell_id"] == [made["subshell_id"]]
        kernel.client.input("")
        await main.done()
        deleted = await kernel.ask("delete_subshell_request", {"subshell_id": made["subshell_id"]}, "control")
        assert deleted["status"] == "ok"


class TestComms:
    async def test_a_comm_carries_binary_buffers_byte_for_byte_both_ways(self, kernel: Kernel) -> None:
        """K4."""
        await kernel.run(
            "def opened(comm, message):\n"
            "    @comm.on_msg\n"
            "    def echo(message):\n"
            "        data = [bytes(each) for each in message['buffers']]\n"
            "        comm.send({'sizes': [len(each) for each in data]}, buffers=data + [b'', bytes(range(256))])\n"
            "get_ipython().kernel.comm_manager.register_target('echo', opened)"
        )
        buffers = [os.urandom(1 << 20), b"", b"\0<IDS|MSG>\0", bytes(range(256)) * 5]
        kernel.say("comm_open", {"comm_id": "c1", "target_name": "echo", "data": {}})
        kernel.say("comm_msg", {"comm_id": "c1", "data": {}}, buffers=buffers)
        await kernel.until(lambda: iopub(kernel, "comm_msg"))
        (message,) = iopub(kernel, "comm_msg")
        assert message["content"]["data"]["sizes"] == [len(each) for each in buffers]
        assert [bytes(each) for each in message["buffers"]] == [*buffers, b"", bytes(range(256))]

    async def test_a_widget_follows_what_the_person_does_with_it(self, kernel: Kernel) -> None:
        """K4."""
        cell = await kernel.run("import ipywidgets\nslider = ipywidgets.IntSlider(value=3)\nslider")
        view = cell.of_type("execute_result")[0]["content"]["data"]["application/vnd.jupyter.widget-view+json"]
        opened = {each["content"]["comm_id"] for each in cell.of_type("comm_open")}
        assert view["model_id"] in opened
        await kernel.run("slider.observe(lambda change: print('now', change['new']), 'value')")
        data = {"method": "update", "state": {"value": 7}, "buffer_paths": []}
        kernel.say("comm_msg", {"comm_id": view["model_id"], "data": data})
        await kernel.until(lambda: iopub(kernel, "stream"))
        assert iopub(kernel, "stream")[0]["content"]["text"] == "now 7\n"
        assert await kernel.value("slider.value") == "7"
        cell = await kernel.run("slider.value = 8")
        assert [each["content"]["data"]["state"] for each in cell.of_type("comm_msg")] == [{"value": 8}]


class TestOutput:
    async def test_rich_outputs_and_display_updates(self, kernel: Kernel) -> None:
        """K4."""
        cell = await kernel.run(
            "from IPython.display import display, HTML, JSON, Image, clear_output, update_display\n"
            "display(HTML('<b>é</b>'), JSON({'a': [1]}))\n"
            "display(Image(data=bytes(range(256)), format='png'))\n"
            "handle = display('one', display_id='d1')\n"
            "handle.update('two')\n"
            "clear_output(wait=True)\n"
            "{'result': 1}"
        )
        html, structure, image, first = cell.of_type("display_data")
        assert html["content"]["data"]["text/html"] == "<b>é</b>"
        assert structure["content"]["data"]["application/json"] == {"a": [1]}
        assert image["content"]["data"]["image/png"].startswith("AAECAwQF")
        (update,) = cell.of_type("update_display_data")
        for message, text in ((first, "'one'"), (update, "'two'")):
            assert message["content"]["transient"] == {"display_id": "d1"}
            assert message["content"]["data"]["text/plain"] == text
        (cleared,) = cell.of_type("clear_output")
        assert cleared["content"]["wait"] is True
        assert cell.value == "{'result': 1}"
        kinds = [message["msg_type"] for message in cell.outputs]
        assert kinds.index("update_display_data") < kinds.index("clear_output") < kinds.index("execute_result")

    async def test_errors_come_with_their_traceback(self, kernel: Kernel) -> None:
        """K4."""
        cell = await kernel.run("import sys\nprint('warning', file=sys.stderr)\n1 / 0")
        assert cell.stderr == "warning\n"
        (error,) = cell.of_type("error")
        assert error["content"]["ename"] == "ZeroDivisionError"
        assert cell.reply is not None
        assert cell.reply["traceback"] == error["content"]["traceback"]

    async def test_what_other_programs_and_c_code_print_is_seen(self, kernel: Kernel) -> None:
        """K4."""
        cell = await kernel.run("import os\nos.system('echo from system; echo sad >&2')\nos.write(1, b'from C\\n');")
        await cell.until(lambda: "from C" in cell.stdout)
        assert cell.stdout == "from system\nfrom C\n"
        assert cell.stderr == "sad\n"
        cell = await kernel.run("%%bash\nfor i in 1 2 3; do echo line $i; done; echo low >&2")
        assert (cell.stdout, cell.stderr) == ("line 1\nline 2\nline 3\n", "low\n")
        cell = await kernel.run("!echo shell $((1 + 1))")
        assert cell.lines == ["shell 2"]

    async def test_twenty_thousand_lines_come_complete_and_in_order(self, kernel: Kernel) -> None:
        """K4."""
        cell = await kernel.run("for i in range(20_000): print(i)")
        assert cell.lines == list(numbered(20_000))

    async def test_large_outputs_and_large_code_pass_whole(self, kernel: Kernel) -> None:
        """K4."""
        cell = await kernel.run("print('é' * 5_000_000)\n'x' * 5_000_000")
        assert cell.stdout == "é" * 5_000_000 + "\n"
        assert len(cell.value) == 5_000_002
        text = "ü" * 5_000_000
        cell = await kernel.run(f"text = {text!r}\nprint(len(text), set(text))")
        assert cell.stdout == "5000000 {'ü'}\n"

    async def test_cells_sent_all_at_once_run_in_order(self, kernel: Kernel) -> None:
        """K4."""
        await kernel.run("ran = []")
        cells = [kernel.begin(f"ran.append({i})\nlen(ran)") for i in range(100)]
        for cell in cells:
            await cell.done()
        assert [cell.value for cell in cells] == [str(i + 1) for i in range(100)]
        assert json.loads(await kernel.value("ran")) == list(range(100))

    async def test_an_error_ends_the_cells_that_wait_behind_it(self, kernel: Kernel) -> None:
        """K4."""
        cells = [kernel.begin(code) for code in ("input()\n1 / 0", "1", "2")]
        await cells[0].until(lambda: cells[0].asked)
        kernel.client.input("")
        for cell in cells:
            await cell.done()
        assert [cell.status for cell in cells] == ["error", "aborted", "aborted"]
