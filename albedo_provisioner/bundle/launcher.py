"""Starts the Python kernel. Run as a script, by the interpreter that the kernel is for, in the kernel's folder.

Eight things make it differ from `python -m ipykernel_launcher`:

- `import albedo_bundle` must work in a kernel, but our directory must not come before the user's packages, nor reach
  the processes that the kernel starts: so it is appended to this process's path, and PYTHONPATH stays as it was.
- An interpreter without ipykernel or pyzmq gets those that were put on this host for it (wheels.py), in the same way.
- The kernel's output socket drops messages beyond a queue of 1,000, silently. The keeper reads at any speed, but when
  the processors are busy a cell can be that far ahead of it for a moment; so the queue is made longer.
- ipykernel takes output of forked children on a TCP port of its own, also when its channels are ipc. Here that is a
  socket in the kernel's private directory too.
- Before it runs a cell it notes the cell's id in a file, so that it is known after its death whether a cell had begun;
  then it looks whether that one was taken back meanwhile (rundir.py), and does not run it if so.
- Compiled files of ours that a full disk has cut short mend themselves (mending.py); the user's are told (caches.py).
- It knows which cell it is that calls (`cells.py`), when code in it asks something of its keeper or of a client.
- Text that cannot be encoded (lone surrogates) is sent with escapes in their place. ipykernel fails to send it, and all
  that was printed together with it is lost, or the cell's reply.

Some of them change ipykernel from outside; where a version of it is made differently, it stays as it is.
"""

import json
import os
import sys
import threading
from typing import Any

QUEUE = 200_000
"""Messages that may wait for the keeper; they wait there for milliseconds."""

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The directory with our package, which lies in the one that holds all that is ours on this host."""

_BEGUN_SIZE = 128
_MOST_TAKEN_BACK = 1 << 16


def main() -> None:
    """Run the kernel until it ends."""
    # Python put the script's own directory first. As with ipykernel_launcher, nothing of the current directory may be
    # imported while the kernel is set up; it adds that directory itself afterwards.
    if not getattr(sys.flags, "safe_path", False):  # a kernelspec's Python may be older than ours has to be
        del sys.path[0]
    sys.path.append(OURS)
    mend_ours()
    try:
        run()
    except Exception as error:
        from albedo_bundle import caches, shadows  # type: ignore[import-not-found,unused-ignore]

        told = caches.words_of(error) or shadows.words_of(error)
        if not told:
            raise
        import traceback

        # ipykernel may have put itself in the place of stderr.
        traceback.print_exc(file=sys.__stderr__)
        print(told, file=sys.__stderr__)
        sys.exit(1)


def run() -> None:
    """Run the kernel, once our modules can be imported."""
    from albedo_bundle import in_use  # type: ignore[import-not-found,unused-ignore]

    # Beside everything else: no kernel waits for a lock that does not come.
    threading.Thread(target=in_use.hold, args=(OURS,), daemon=True).start()
    try:
        from ipykernel.kernelapp import IPKernelApp
    except ModuleNotFoundError as error:
        from albedo_bundle import wheels  # type: ignore[import-not-found,unused-ignore]

        if error.name not in ("ipykernel", "zmq") or not wheels.put_on_path():
            raise
        from ipykernel.kernelapp import IPKernelApp

    lengthen_queue(IPKernelApp)
    send_any_text(IPKernelApp)
    connection_file = sys.argv[sys.argv.index("-f") + 1]
    with open(connection_file) as file:
        base = json.load(file)["ip"]
    take_forks_output_at(f"ipc://{base}-6")
    take_calls_at(os.path.join(os.path.dirname(base), "calls"))
    directory = os.path.dirname(connection_file)
    note_what_begins(os.path.join(directory, "begun"), os.path.join(directory, "taken-back"))
    IPKernelApp.launch_instance()


def mend_ours() -> None:
    """Have what is ours mend itself. Read from the text: its own compiled file may be one that is cut."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mending.py")
    names: dict[str, Any] = {}
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), names)
    names["mend_below"](os.path.dirname(OURS))


def lengthen_queue(app: Any) -> None:
    """Have the kernel's output wait rather than be dropped."""
    import zmq

    bind = getattr(app, "_bind_socket", None)
    if bind is None:
        return

    def bind_with_room(self: Any, socket: "zmq.Socket[bytes]", port: int) -> int:
        if socket.type in (zmq.PUB, zmq.XPUB):
            socket.sndhwm = QUEUE
        return int(bind(self, socket, port))

    app._bind_socket = bind_with_room


def send_any_text(app: Any) -> None:
    """Have messages sent whatever text is in them."""
    make_sockets = getattr(app, "init_sockets", None)
    if make_sockets is None:
        return

    def init_sockets(self: Any) -> None:
        pack = self.session.pack

        def pack_any_text(content: Any) -> Any:
            try:
                return pack(content)
            except UnicodeEncodeError:
                return pack(without_surrogates(content))

        self.session.pack = pack_any_text
        make_sockets(self)

    app.init_sockets = init_sockets


def without_surrogates(content: Any) -> Any:
    """Return what a message is made of with escapes for lone surrogates in its texts, as Python has them on stderr."""
    if isinstance(content, str):
        return content.encode("utf-8", "backslashreplace").decode()
    if isinstance(content, dict):
        return {without_surrogates(key): without_surrogates(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [without_surrogates(each) for each in content]
    return content


def take_forks_output_at(address: str) -> None:
    """Have forked children hand in their output at this address."""
    import zmq
    from ipykernel import iostream

    thread: Any = getattr(iostream, "IOPubThread", None)
    stream: Any = getattr(iostream, "ZMQStream", None)
    if stream is None or not all(
        hasattr(thread, name) for name in ("_setup_pipe_in", "_setup_pipe_out", "_handle_pipe_msg")
    ):
        return

    def listen(self: Any) -> None:
        self._pipe_uuid = os.urandom(16)  # what a child proves itself with
        socket = self.socket.context.socket(zmq.PULL)
        socket.linger = 0
        socket.bind(address)
        self._pipe_in = stream(socket, self.io_loop)
        self._pipe_in.on_recv(self._handle_pipe_msg)

    def connect(self: Any) -> Any:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()  # a forked child cannot use its parent's
        socket = context.socket(zmq.PUSH)
        socket.linger = 3000
        socket.connect(address)
        return context, socket

    thread._setup_pipe_in = listen
    thread._setup_pipe_out = connect


def take_calls_at(path: str) -> None:
    """Have calls go to this socket of the keeper's, and know which cell they come from."""
    from albedo_bundle import cells  # type: ignore[import-not-found,unused-ignore]
    from ipykernel.ipkernel import IPythonKernel

    cells.socket_path = path
    execute: Any = getattr(IPythonKernel, "execute_request", None)
    if execute is None:
        return
    cells.follow_threads()

    async def execute_request(self: Any, stream: Any, ident: Any, parent: Any) -> None:
        # Within the coroutine: it may be run in another context than the one that it is made in.
        wanted = cells.begin(ident, parent)
        if wanted:
            try:
                from albedo_bundle import namespace

                namespace.prepare(*wanted, self.shell)
            except Exception:  # the cell has to be run, and answered, all the same
                self.log.exception("What the session offers could not be put into the namespace.")
        result = execute(self, stream, ident, parent)
        if hasattr(result, "__await__"):
            await result

    IPythonKernel.execute_request = execute_request  # type: ignore[method-assign,unused-ignore]


def note_what_begins(path: str, taken_back: str) -> None:
    """Have the id of each cell written to this file before it is run, which rundir.py reads; those whose ids are in the
    other file by then are answered as aborted, as ipykernel answers what it throws away.
    """
    from ipykernel.ipkernel import IPythonKernel

    execute: Any = getattr(IPythonKernel, "execute_request", None)
    if execute is None:
        return
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.pwrite(file, b" " * _BEGUN_SIZE, 0)  # the place is taken now: later it may be that the disk is full
    not_to_run = os.open(taken_back, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    async def refuse(self: Any, stream: Any, ident: Any, parent: Any) -> None:
        self.session.send(stream, "execute_reply", {"status": "aborted"}, parent, ident=ident)

    def execute_request(self: Any, stream: Any, ident: Any, parent: Any) -> Any:
        cell = str(parent.get("header", {}).get("msg_id", "")).encode("utf-8", "replace")
        os.pwrite(file, cell[:_BEGUN_SIZE].ljust(_BEGUN_SIZE), 0)
        refused = os.pread(not_to_run, _MOST_TAKEN_BACK, 0)
        if refused and cell in refused.split(b"\n"):
            return refuse(self, stream, ident, parent)
        return execute(self, stream, ident, parent)

    IPythonKernel.execute_request = execute_request  # type: ignore[method-assign,unused-ignore]


if __name__ == "__main__":
    main()
