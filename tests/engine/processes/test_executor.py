"""Worker processes: death, shutdown, memory, errors. All with real processes and real kills."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
import types
from pathlib import Path

import numpy as np
import psutil
import pytest

from shardwise import DataLoader
from shardwise.base.errors import StallError, WorkerError
from shardwise.codecs import array
from shardwise.dataset import Dataset
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.processes import worker
from shardwise.engine.processes.executor import ProcessExecutor
from shardwise.engine.request import BatchRequest
from shardwise.testing import assert_batches_equal
from tests.support.memory_source import MemorySource, numbered_samples
from tests.support.torchrun import PYTHON_PATH, ROOT
from tests.support.waiting import wait_for


class Squares:
    """A decoder that fills rows in place, as image decoders do."""

    row = ((64, 32), np.dtype(np.float32))

    def __call__(self, data):
        return np.full((64, 32), int(bytes(data)) ** 2, dtype=np.float32)

    def decode_into(self, data, out):
        out[...] = int(bytes(data)) ** 2


def squares(num_samples=64):
    return Dataset(MemorySource(numbered_samples(num_samples))).decode(cls=Squares(), txt=str)


def loader(dataset=None, **options):
    given = {"num_workers": 1, "output": "numpy", "rank": 0, "world_size": 1, "batch_size": 16}
    return DataLoader(squares() if dataset is None else dataset, **{**given, **options})


def workers():
    return [
        p for p in psutil.Process().children() if "shardwise.engine.processes.worker" in p.cmdline()
    ]


# Its workers are told from other processes by their command line.
fresh = pytest.mark.usefixtures("fresh_workers")


@pytest.mark.parametrize("batch_size", [1, 3])
def test_batches_of_a_few_bytes_that_grow_into_groups_keep_memory_of_their_own(batch_size):
    # A group of several batches may need no more memory than one: rows are aligned.
    data = Dataset(MemorySource(numbered_samples(60))).decode(bin=array("uint8", (8,)))
    data = data.select("bin")
    options = {"batch_size": batch_size, "rank": 0, "world_size": 1, "output": "numpy"}
    expected = list(DataLoader(data, num_threads=0, **options))
    with DataLoader(data, num_workers=1, **options) as loader:
        assert_batches_equal(list(loader), expected)


def test_a_user_who_keeps_every_batch_has_right_data_and_no_deadlock():
    with loader(squares(2400), num_workers=2, batch_size=16) as made:
        kept = list(made)
    assert len(kept) == 150
    for step, batch in enumerate(kept):
        assert batch["__index__"].tolist() == list(range(step * 16, step * 16 + 16))
        assert (batch["cls"][:, 5, 7] == batch["__index__"].astype(np.float32) ** 2).all()


def test_the_memory_of_batches_that_are_gone_is_used_again():
    # On a busy machine up to 32 batches are made ahead.
    with loader(squares(640), batch_size=4) as made:
        addresses = {batch["cls"].__array_interface__["data"][0] for batch in made}
    assert len(addresses) < 80


def test_batches_outlive_their_loader():
    made = loader()
    batch = next(iter(made))
    made.close()
    del made
    gc.collect()
    assert (batch["cls"][3] == 9).all()


def test_a_loop_whose_loader_is_closed_in_it_ends_with_an_error_that_says_so():
    with loader(squares(4000), batch_size=8) as made:
        batches = iter(made)
        next(batches)
        made.close()
        with pytest.raises(RuntimeError, match="the loader was closed while it was iterated"):
            next(batches)
        assert next(iter(made))["__index__"].tolist() == list(range(8))


_LEFT = """
import threading
import shardwise as sw
from tests.engine.processes.test_executor import loader, squares

def run():
    for _ in loader(squares(20_000), batch_size=8):
        has_begun.set()

if __name__ == "__main__":
    has_begun = threading.Event()
    threading.Thread(target=run, daemon=True).start()
    assert has_begun.wait(60)
"""


def test_a_daemon_thread_that_iterates_when_the_program_ends_is_told_so(tmp_path):
    code, _, err = said_by(_LEFT, tmp_path)
    assert code == 0, err
    # The thread may end in the middle of its traceback.
    assert "worker process" not in err, err
    assert "Bad file descriptor" not in err, err


def take_2_ms(sample):
    time.sleep(0.002)
    return sample


@fresh
def test_a_killed_worker_is_an_error_with_its_exit_code_and_the_loader_goes_on_from_its_state():
    # The trainer is faster than the workers: it waits, and so sees that one has died.
    with loader(squares(200).map(take_2_ms), num_workers=2, batch_size=8) as made:
        batches = iter(made)
        given = next(batches)["__index__"].tolist()
        workers()[0].send_signal(signal.SIGKILL)
        with pytest.raises(WorkerError, match="exit code -9") as caught:
            while True:
                given += next(batches)["__index__"].tolist()
        assert caught.value.exitcode == -signal.SIGKILL
        wait_for(lambda: not workers())
        state = made.state_dict()
        made.load_state_dict(state)
        for batch in made:
            given += batch["__index__"].tolist()
    assert given == list(range(200))


def test_a_dataset_that_workers_can_not_load_is_an_error_that_says_so():
    class Unloadable:
        def __call__(self, sample):
            return sample

        def __reduce__(self):
            return int, ("not a number",)

    with (
        loader(squares().map(Unloadable())) as made,
        pytest.raises(WorkerError, match=r"could not start: .*ValueError: invalid literal"),
    ):
        next(iter(made))


def test_a_late_batch_raises_stall_error_that_names_the_worker_and_the_sample(tmp_path):
    note = tmp_path / "begun"

    def slow(sample):
        if sample["txt"] == "text 9":
            note.touch()
            time.sleep(3600)
        return sample

    with loader(squares().map(slow), batch_size=8) as made:
        batches = iter(made)
        next(batches)
        # Only now: what comes before may take long on a busy machine.
        wait_for(note.exists)
        made._maker.executor.timeout = 1
        with pytest.raises(StallError, match=r"step 1 of epoch 0 .*worker process \d.*sample 8 of"):
            next(batches)


@fresh
def test_abandoned_iterators_and_closed_loaders_leave_nothing_behind():
    me = psutil.Process()
    with loader(squares(4000), num_workers=2) as made:
        for _ in range(10):
            next(iter(made))
        gc.collect()
        before = me.num_fds()
        for _ in range(30):
            next(iter(made))
        gc.collect()
        assert me.num_fds() <= before + 8
        wait_for(lambda: len(workers()) == 2)
    for _ in range(3):
        next(iter(loader()))
    gc.collect()
    wait_for(lambda: not workers())


def test_a_loader_dropped_without_close_gives_its_batch_memory_back():
    def num_memory_files():
        gc.collect()
        files = [os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
        return sum("memfd:shardwise" in file for file in files)

    before = num_memory_files()
    assert sum(1 for _ in loader()) == 4
    # Those of a loader that another test left may be gone by now.
    assert num_memory_files() <= before


def run_program(program, *, tmp_path, cwd=None, before=()):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program))
    return subprocess.Popen(
        [*before, sys.executable, str(path)],
        cwd=cwd or ROOT,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def said_by(program, tmp_path, **options):
    """The exit code of a program, and what it wrote to stdout and stderr."""
    made = run_program(program, tmp_path=tmp_path, **options)
    out, err = made.communicate(timeout=240)
    return made.returncode, out, err


PROGRAM = """
    # No main guard, and functions of the main program: both work.
    import os, signal, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)
    import shardwise as sw
    from shardwise.dataset import Dataset
    from tests.support.memory_source import MemorySource, numbered_samples

    def double(sample):
        return {"twice": 2 * sample["cls"]}

    dataset = Dataset(MemorySource(numbered_samples(2000))).decode(cls=int).map(double)
    loader = sw.DataLoader(
        dataset, batch_size=10, num_workers=1, rank=0, world_size=1, output="numpy"
    )
"""


def descendants(process):
    return psutil.Process(process.pid).children(recursive=True)


def test_a_program_without_a_main_guard_works_and_ends_in_silence(tmp_path):
    program = PROGRAM + "\n    print(next(iter(loader))['twice'].tolist())\n"
    assert said_by(program, tmp_path) == (0, f"{list(range(0, 20, 2))}\n", "")


def test_a_file_in_the_working_directory_is_no_module_of_the_workers(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("numpy", "resource", "shardwise"):
        (elsewhere / f"{name}.py").write_text("raise ImportError('the wrong module')\n")
    (tmp_path / "beside.py").write_text("ANSWER = 42\n")
    program = PROGRAM.replace('2 * sample["cls"]', '__import__("beside").ANSWER')
    program += "\n    print(next(iter(loader))['twice'].tolist())\n"
    assert said_by(program, tmp_path, cwd=elsewhere) == (0, f"{[42] * 10}\n", "")


@pytest.mark.parametrize(
    "how",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL],
)
def test_a_trainer_that_is_ended_leaves_no_process_behind(how, tmp_path):
    program = PROGRAM.replace("num_workers=1", "num_workers=2")
    program += (
        "\n    while True:\n        for batch in loader:\n            print('.', flush=True)\n"
    )
    program = run_program(program, tmp_path=tmp_path)
    try:
        assert program.stdout.readline() == ".\n"
        children = descendants(program)
        assert len(children) == 2
        os.kill(program.pid, how)
        _, err = program.communicate(timeout=120)
        assert program.returncode == -how if how != signal.SIGINT else program.returncode != 0
        assert err.count("KeyboardInterrupt") == (1 if how == signal.SIGINT else 0), err
        _, alive = psutil.wait_procs(children, timeout=60)
        assert not alive
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.communicate()


def test_a_worker_whose_trainer_is_gone_before_it_starts_ends_in_silence(monkeypatch):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    worker._end_with(gone.pid)
    assert ended == [0]


def test_where_ctrl_c_is_ignored_it_is_ignored_by_all(tmp_path):
    program = PROGRAM.replace("signal.default_int_handler", "signal.SIG_IGN")
    program += """
    os.killpg(0, signal.SIGINT)
    given = []
    for batch in loader:
        given += batch["twice"].tolist()
        os.killpg(0, signal.SIGINT)
    assert given == list(range(0, 4000, 2))
    """
    assert said_by(program, tmp_path) == (0, "", "")


def test_workers_do_not_import_torch(tmp_path):
    program = PROGRAM.replace(
        '{"twice": 2 * sample["cls"]}', '{"torch": "torch" in __import__("sys").modules}'
    )
    program += "\n    print(next(iter(loader))['torch'].tolist())\n"
    assert said_by(program, tmp_path) == (0, f"{[False] * 10}\n", "")


def test_workers_allow_themselves_the_open_files_of_a_whole_window(tmp_path):
    program = PROGRAM.replace(
        '{"twice": 2 * sample["cls"]}',
        '{"limit": __import__("resource").getrlimit(__import__("resource").RLIMIT_NOFILE)[0]}',
    ).replace(
        "import shardwise as sw",
        """import resource
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
    import shardwise as sw""",
    )
    program += """
    batch = next(iter(loader))
    most = 16384 if hard == resource.RLIM_INFINITY else min(16384, hard)
    assert batch["limit"].tolist() == [most] * 10, batch["limit"]
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300
"""
    code, _, err = said_by(program, tmp_path)
    assert code == 0, err


@fresh
def test_functions_of_a_module_that_nobody_can_import_reach_the_workers():
    module = types.ModuleType("made_while_the_program_ran")
    exec("def double(sample):\n    return {'x': 2 * int(sample['cls'])}", module.__dict__)
    sys.modules[module.__name__] = module
    module.double.__module__ = module.__name__
    try:
        dataset = Dataset(MemorySource(numbered_samples(16))).map(module.double)
        executor = ProcessExecutor(BatchBuilder(dataset), num_workers=1, timeout=120)
        [batch] = executor.run(iter([BatchRequest(0, 0, np.arange(16))]))
        executor.close()
    finally:
        del sys.modules[module.__name__]
    assert batch.data["x"].tolist() == list(range(0, 32, 2))
