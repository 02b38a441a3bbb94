"""vLLM engines for tests: imports vllm once, then forks a process for each engine that is ordered.

A line in: {"socket": path, "log": path, "options": {...}, "environment": {...}}. The engine connects to that socket
and obeys the orders that come there, one JSON object a line, answered by one: see support/vllm_engines.py.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import socket
import sys
from typing import Any


def main() -> None:
    """Forks until stdin ends."""
    import vllm.entrypoints.llm
    import vllm.lora.request
    import vllm.model_executor.models.llama
    import vllm.v1.attention.backends.cpu_attn
    import vllm.v1.engine.core
    import vllm.v1.engine.utils
    import vllm.v1.executor.multiproc_executor
    import vllm.v1.worker.cpu_worker

    import support.vllm_engine
    from moonpool.connector import store_connector  # noqa: F401

    # On a CPU vLLM insists on new interpreters for its own processes, each of which would import it again.
    for module in (vllm.v1.engine.utils, vllm.v1.executor.multiproc_executor):
        module.get_mp_context = lambda: multiprocessing.get_context("fork")
    gc.freeze()  # what is shared stays shared
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if os.fork() == 0:
            become_engine(order, support.vllm_engine.Engine)
        # A child that has ended stays a zombie until the next fork, so that its pid means nothing else meanwhile.
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def become_engine(order: dict[str, Any], engine_class: type[Any]) -> None:
    """In the forked process: serves orders until the socket closes."""
    # A killed engine takes its workers along. Not a session: Linux groups processes by session for its turns, and an idle
    # rank of vLLM spins, with sched_yield, which lets go only to its own group: servers got no turn for up to 30 s.
    os.setpgid(0, 0)
    log = os.open(order["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.update(order["environment"])
    line = socket.socket(socket.AF_UNIX)
    line.connect(order["socket"])
    stream = line.makefile("rw")

    def answer(message: dict[str, Any]) -> None:
        stream.write(json.dumps(message) + "\n")
        stream.flush()

    try:
        engine = engine_class(order["options"])
        answer({"pid": os.getpid()})
        for text in stream:
            wanted = json.loads(text)
            try:
                answer(getattr(engine, wanted.pop("do"))(**wanted) or {})
            except Exception as error:  # noqa: BLE001 -- the test shows it
                answer({"error": f"{type(error).__name__}: {error}"})
    except BaseException as error:  # noqa: BLE001 -- nothing of this process may go on in the nursery's code
        print(f"the engine ended: {error!r}", file=sys.stderr, flush=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
