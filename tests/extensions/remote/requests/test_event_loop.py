"""The thread that speaks to stores: one a process, and forks never wait for it."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import CancelledError

import pytest

from shardwise.base.errors import StorageError
from shardwise.extensions.remote.requests.blocking_pool import in_thread
from shardwise.extensions.remote.requests.event_loop import Runtime, _Cancellable, runtime
from tests.support.python_code import printed_by, run_code
from tests.support.threads import at_once


def test_there_is_one_a_process_and_all_threads_use_it():
    assert len(set(at_once(lambda _: runtime(obstore=False), 8))) == 1


def test_work_is_done_and_its_errors_are_raised_here():
    async def add(a, b):
        await asyncio.sleep(0)
        return a + b

    async def fail():
        raise KeyError("x")

    process = runtime(obstore=False)
    assert process.run(add(1, 2)) == 3
    with pytest.raises(KeyError):
        process.run(fail())


def test_what_is_shared_is_made_once_and_bounded():
    async def work():
        made = []
        for number in range(3000):
            process.get(("x", number), lambda n=number: made.append(n))
            process.get("often", lambda: made.append("often"))
        return made

    process = Runtime()
    try:
        made = process.run(work())
        assert made.count("often") == 1
        assert len(made) == 3001
        assert len(process.shared) <= 1024
    finally:
        process.end()


def test_an_ended_one_says_so():
    process = Runtime()
    process.end()

    async def nothing():
        return None

    with pytest.raises(StorageError, match="interpreter is ending"):
        process.run(nothing())


# A signal that another thread receives ends no wait of the main thread, as one that comes just
# before the wait.
@pytest.mark.parametrize("receiver", ["main_thread()", "current_thread()"])
def test_ctrl_c_ends_the_work_before_it_is_raised(receiver):
    printed = printed_by(
        """
        import asyncio, signal, sys, threading, time
        from shardwise.extensions.remote.requests.event_loop import runtime
        # Of a process that was started in the background it may be ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        started, ended = threading.Event(), []

        async def forever():
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        def interrupt():
            started.wait()
            main = threading.main_thread()
            while sys._current_frames()[main.ident].f_code.co_name != "wait":
                time.sleep(0.01)
            receiver = eval("threading." + sys.argv[1])
            signal.pthread_kill(receiver.ident, signal.SIGINT)

        threading.Thread(target=interrupt).start()
        try:
            runtime(obstore=False).run(forever())
        except KeyboardInterrupt:
            print("interrupted", ended)
        """,
        receiver,
    )
    assert printed == "interrupted [True]"


def test_work_that_is_interrupted_before_it_begins_is_never_begun():
    begun = []

    async def work():
        begun.append(True)

    process = Runtime()
    try:
        # As if Ctrl-C came while the work was handed over: the loop hears of the end first.
        watch = _Cancellable(process.loop)
        watch.stop()
        done = asyncio.run_coroutine_threadsafe(watch.over(work()), process.loop)
        with pytest.raises(CancelledError):
            done.result()
        assert not begun
    finally:
        process.end()


def test_a_forked_child_has_one_of_its_own_unless_obstore_was_used():
    printed = printed_by(
        """
        import os
        from shardwise.extensions.remote.requests.event_loop import runtime

        async def two():
            return 2

        assert runtime(obstore=False).run(two()) == 2
        pid = os.fork()
        if pid == 0:
            os._exit(10 + runtime(obstore=True).run(two()))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 12
        runtime(obstore=True)
        pid = os.fork()
        if pid == 0:
            code = runtime(obstore=False).run(two())
            if os.fork() == 0:
                # Not even a grandchild forgets.
                try:
                    runtime(obstore=True)
                except OSError:
                    os._exit(1)
                os._exit(0)
            code += os.waitstatus_to_exitcode(os.wait()[1])
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        print("ok")
        """
    )
    assert printed == "ok"


def test_a_call_that_blocks_for_ever_does_not_keep_the_interpreter():
    printed = printed_by(
        """
        import asyncio, threading
        from shardwise.extensions.remote.requests.blocking_pool import in_thread
        from shardwise.extensions.remote.requests.event_loop import runtime

        async def hang():
            async with asyncio.timeout(0.2):
                await in_thread(threading.Event().wait)

        try:
            runtime(obstore=False).run(hang())
        except TimeoutError:
            print("ok")
        """
    )
    assert printed == "ok"


def test_what_a_blocking_call_raises_is_raised_where_it_is_waited_for():
    async def work():
        with pytest.raises(ZeroDivisionError):
            await in_thread(lambda: 1 // 0)
        return await in_thread(os.getpid)

    assert asyncio.run(work()) == os.getpid()


def test_a_result_that_arrives_after_its_call_was_cancelled_finds_the_loop_open():
    done = run_code(
        """
        import asyncio, threading, time
        from obstore import put_async
        from obstore.store import MemoryStore
        from shardwise.extensions.remote.requests.event_loop import runtime

        process = runtime(obstore=True)
        hand_over, is_submitting = process.loop.call_soon_threadsafe, threading.Event()

        def late(*args, **options):
            # Obstore's thread loses its core just before it hands over the result.
            if "shardwise" not in threading.current_thread().name != "MainThread":
                is_submitting.set()
                time.sleep(0.5)
            return hand_over(*args, **options)

        async def begin():
            calls.append(asyncio.ensure_future(
                process.native.result(put_async(MemoryStore(), "key", b"value"))
            ))

        calls = []
        process.loop.call_soon_threadsafe = late
        process.run(begin())
        assert is_submitting.wait(60)
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_that_is_collected_while_work_is_submitted_blocks_nothing():
    # In a process of its own: where it fails, its thread waits for ever.
    done = run_code("""
        import asyncio, faulthandler, gc
        from shardwise.extensions.remote.requests.event_loop import runtime

        faulthandler.dump_traceback_later(20, exit=True)
        storage, posted = runtime(obstore=False), []
        submit = asyncio.run_coroutine_threadsafe

        class File:
            def __del__(self):
                storage.post(lambda: posted.append(1))

        def collects(work, loop):
            file = File()
            file.itself = file
            del file
            gc.collect()
            return submit(work, loop)

        asyncio.run_coroutine_threadsafe = collects

        async def work():
            return len(posted)

        print(storage.run(work()))
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"
