"""Work in a forked child, as a user's program may do it at any moment."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from typing import Any

# A child that hangs is killed.
_PATIENCE_S = 120


def in_child(work: Callable[[], Any]) -> Any:
    """What `work()` gives in a forked child, which must end; what it raises is raised here."""
    readable, writeable = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_PATIENCE_S)
        try:
            answer = _answer(work)
            with open(writeable, "wb") as file:
                file.write(answer)
        finally:
            os._exit(0)
    os.close(writeable)
    with open(readable, "rb") as file:
        answer = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert answer, f"the child ended with {code}"
    is_good, value = pickle.loads(answer)
    if not is_good:
        raise value
    return value


def _answer(work: Callable[[], Any]) -> bytes:
    try:
        return pickle.dumps((True, work()))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent hears of it
        traceback.print_exc()
        return pickle.dumps((False, error))
