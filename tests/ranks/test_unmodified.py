"""`kernel-monitor run` of scripts that do not import kernel_monitor, switched from a terminal, and reported."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from kernel_monitor.ranks import session_files, switch_command, terminal_requests
from kernel_monitor.ranks.rank_server import RankServer
from kernel_monitor.ranks.session_files import FILE, PREFIX
from tests.kernel.kernels import Page
from tests.loaders.conftest import make_folder
from tests.unit.commands import called

from ..waiting import until
from .conftest import ROOT
from .peers import Client, outside
from .test_joining import TORCHRUN
from .test_switching import until_state

SCRIPT = str(Path(__file__).parent / "unmodified.py")
PATIENCE_S = 150  # time for processes that import torch
COMMAND = [sys.executable, "-m", "kernel_monitor"]
ADDRESS = re.compile(r"0x[0-9a-f]+")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("photos"), 121)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which sessions make their folders."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setattr(session_files, "_places", lambda: [folder])
    monkeypatch.setattr(switch_command, "_ANSWER_S", 10.0)
    monkeypatch.delenv(session_files.VARIABLE, raising=False)
    return folder


def start(*words: object, **environment: str) -> subprocess.Popen[str]:
    variables = outside(PYTHONPATH=str(ROOT), **environment)
    pipe = subprocess.PIPE
    return subprocess.Popen([*map(str, words)], env=variables, stdout=pipe, stderr=pipe, text=True)


def test_a_script_is_switched_and_is_itself(
    tmp_path: Path, photos: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, short = tmp_path / "out", tmp_path / "short"
    out.mkdir()
    short.mkdir()
    (short / "enough").touch()
    # The plain one does not run longer than its first epoch, which is before the click in the other one.
    arguments = ["out", photos]
    report = tmp_path / "run.html"
    run = start("env", "-C", tmp_path, *COMMAND, "run", "--report", report, SCRIPT, *arguments, SPAWN="1")
    with run as process, start("env", "-C", tmp_path, sys.executable, SCRIPT, "short", photos) as plain:
        try:
            until((out / "epoch 0").exists, PATIENCE_S, process.poll)
            status, listed, _ = called(capsys, "switch")
            assert status == 0
            heading, line = listed.splitlines()
            assert heading.split() == ["process", "command", "loader", "engine", "state"]
            assert line.split()[0] == str(process.pid)
            assert re.match(r"\d+ +unmodified.py +train_loader +torchvision +epoch \d+, batch \d+ of 31", line)
            for engine in ("dali-cpu", "torchvision"):
                which = ("--loader", "train_loader", "--session", Path(SCRIPT).name, "--seconds", PATIENCE_S)
                status, said, error = called(capsys, "switch", engine, *which)
                assert (status, error) == (0, "")
                assert re.fullmatch(rf"train_loader: {engine} since batch \d+\n", said), said
                enough = len([*out.iterdir()]) + 2
                until(lambda: len([*out.iterdir()]) >= enough, PATIENCE_S)  # noqa: B023 - steps enough for a segment
            status, said, error = called(capsys, "switch", "nonsense", "--session", line.split()[0])
            assert (status, said) == (1, "")
            assert "There is no backend 'nonsense'" in error
            assert "this has to be confirmed, by --yes." in called(capsys, "switch", "synthetic")[2]
            assert called(capsys, "switch", "dali-cpu", "--loader", "val")[0] == 1
        finally:
            (out / "enough").touch()
        printed, error = process.communicate(timeout=PATIENCE_S)
        expected, _ = plain.communicate(timeout=PATIENCE_S)
    assert (process.returncode, plain.returncode) == (3, 3), error
    assert "once True True" in printed
    assert (out / "patched").read_text() == "[False, False] True"  # in a spawned worker, and in the script
    assert ADDRESS.sub("", printed) == ADDRESS.sub("", expected).replace("'short'", "'out'")
    path = re.findall("recorded: (.*)", error)[-1]
    assert "kernel_monitor" in report.read_text("utf-8")
    status, said, _ = called(capsys, "report", path, "--json")
    found = json.loads(said)
    assert status == 0
    assert {segment["backend"] for segment in found["segments"]} >= {"torchvision", "dali-cpu"}
    assert called(capsys, "switch") == (0, f"{switch_command._NOTHING}\n", "")


def test_ranks_of_an_unmodified_script_are_switched_from_a_page(
    page: Page, tmp_path: Path, photos: Path, port: int
) -> None:
    page.run("from kernel_monitor import monitor")
    folder = page.value("monitor.live_session.ranks.server.folder")
    run = [*COMMAND, "run", "--join", folder, sys.executable, *TORCHRUN.split(), port, SCRIPT]
    with start(*run, tmp_path, photos) as process:
        try:
            state = until_state(page, "state and state[0]['ranks'] == 2 and state[0]['batch'] > 2", PATIENCE_S)
            assert (state["name"], state["status"]) == ("train_loader · job 1", "torchvision on 2 ranks")
            page.run("monitor.switch('dali-cpu', loader='train_loader · job 1')")
            switched = "state[0]['backend'] == 'dali-cpu' and state[0]['wanted'] is None"
            assert until_state(page, switched, PATIENCE_S)["status"] == "dali-cpu on 2 ranks"
            # The same from a terminal, by the notebook's session.
            switch = start(*COMMAND, "switch", "torchvision", "--session", folder, "--seconds", PATIENCE_S)
            said = switch.communicate(timeout=PATIENCE_S)
        finally:
            (tmp_path / "enough").touch()
        printed, error = process.communicate(timeout=PATIENCE_S)
    assert said == ("train_loader · job 1: torchvision on 2 ranks\n", "")
    assert process.returncode == 0, error
    assert printed == "once True\nonce True\n"


PAIR = """
import os, subprocess, sys, time
from pathlib import Path
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

out, photos, rank = Path(sys.argv[1]), sys.argv[2], os.environ.get("LOCAL_RANK", "0")
if rank == "0":  # as Lightning starts the other ranks of a script
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[3], WORLD_SIZE="2", LOCAL_RANK="0")
    other = subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "LOCAL_RANK": "1"})
transform = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
train_loader = DataLoader(datasets.ImageFolder(photos, transform), 8)
while rank == "1" and not (out / "begin").exists():
    time.sleep(0.02)
while not (out / "enough").exists():
    assert sum(len(targets) for _, targets in train_loader) == 121
    time.sleep(0.05)
if rank == "0":
    sys.exit(other.wait())
"""


LIGHTNING = """
import os, sys, time
from pathlib import Path
import lightning.pytorch as lightning
import torch
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms

out, photos, port = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)


class Sampler(DistributedSampler):
    def __iter__(self):
        while self.rank == 1 and not (out / "begin").exists():
            time.sleep(0.02)
        return super().__iter__()


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3 * 32 * 32, 1)
        self.seen = 0

    def on_train_epoch_start(self):
        self.seen = 0

    def training_step(self, batch, index):
        images, targets = batch
        self.seen += len(targets)
        return self.layer(images.flatten(1)).mean()

    def on_train_epoch_end(self):
        assert self.seen == 61
        self.trainer.should_stop = self.trainer.strategy.broadcast((out / "enough").exists())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def train_dataloader(self):
        transform = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
        photos_of_all = datasets.ImageFolder(photos, transform)
        sampler = Sampler(photos_of_all, self.trainer.world_size, self.global_rank)
        return DataLoader(photos_of_all, 8, sampler=sampler)


trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=-1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
)
trainer.fit(Module())
"""


@pytest.mark.parametrize("text", [PAIR, LIGHTNING], ids=["by hand", "Lightning"])
def test_a_switch_of_rank_0_holds_for_the_ranks_that_it_starts(
    text: str, tmp_path: Path, photos: Path, place: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked before the first batch of the other rank, and after it; of either's loader."""
    script = tmp_path / "pair.py"
    script.write_text(text)

    def engines() -> list[tuple[str, str]]:
        lines = called(capsys, "switch")[1].splitlines()[1:]
        return [re.findall(r"(train_(?:data)?loader(?: · job 1)?) +([a-z-]+)", line)[0] for line in lines]

    def both(engine: str) -> bool:
        return engines() == [(name, engine), (f"{name} · job 1", engine)]

    with start(*COMMAND, "run", script, tmp_path, photos, port) as process:
        try:
            until(engines, PATIENCE_S, process.poll)
            ((name, engine),) = engines()
            assert engine == "torchvision"
            patience = ("--seconds", PATIENCE_S)
            with start(*COMMAND, "switch", "dali-cpu", *patience) as asked:
                until(lambda: "dali-cpu" in called(capsys, "switch")[1], PATIENCE_S, engines)
                (tmp_path / "begin").touch()  # only now may rank 0 go on, where its step waits for the other's
                assert asked.communicate(timeout=PATIENCE_S)[1] == ""
            until(lambda: both("dali-cpu"), PATIENCE_S, engines)
            assert called(capsys, "switch", "torchvision", *patience)[0] == 0
            until(lambda: both("torchvision"), PATIENCE_S, engines)
            assert called(capsys, "switch", "threads", "--loader", f"{name} · job 1", *patience)[0] == 0
            until(lambda: both("threads"), PATIENCE_S, engines)
        finally:
            (tmp_path / "begin").touch()
            (tmp_path / "enough").touch()
        _, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, error


def test_signals_and_statuses_are_the_scripts(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text(
        "import os, signal, sys, time\nfrom pathlib import Path\n"
        "for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):\n"
        "    signal.signal(number, lambda number, _: print(signal.Signals(number).name, flush=True))\n"
        "ignored = [number for number in range(1, 65) if signal.getsignal(number) == signal.SIG_IGN]\n"
        "print(os.getpid(), ignored == [signal.SIGPIPE, signal.SIGXFSZ], flush=True)\n"
        "while not Path(sys.argv[1]).exists(): time.sleep(0.02)\n"
        "sys.exit(5)\n"
    )
    # Without a terminal, which would send the interrupt to both.
    variables, pipe = outside(PYTHONPATH=str(ROOT)), subprocess.PIPE
    words = [*COMMAND, "run", str(script), str(tmp_path / "enough")]
    with subprocess.Popen(words, env=variables, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{process.pid} True\n"
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            process.send_signal(number)
            assert process.stdout.readline() == f"{number.name}\n"
        (tmp_path / "enough").touch()
        _, error = process.communicate(timeout=60)
    assert process.returncode == 5
    assert error == "kernel-monitor: nothing was measured in this process, as it never imported torch\n"


@pytest.mark.usefixtures("recordings")
@pytest.mark.parametrize("other", [False, True], ids=["script", "another command"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_it_ends_by_a_signal_as_its_command_does(number: signal.Signals, other: bool, tmp_path: Path) -> None:
    script, temporary = tmp_path / "waits.py", tmp_path / "temporary"
    temporary.mkdir()
    script.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)\n")
    words = ["env", sys.executable] if other else []
    run = [*COMMAND, "run", *words, script]
    with start(*run, TMPDIR=str(temporary), XDG_RUNTIME_DIR=str(temporary)) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert (pid == process.pid) != other
        process.send_signal(number)
        assert process.wait(60) == -number
        until(lambda: not psutil.pid_exists(pid), 10)  # no orphan goes on
        process.communicate(timeout=60)
    if not other:
        assert [*temporary.iterdir()] == []


def test_the_script_itself_says_where_it_is_recorded_and_its_fork_does_not(tmp_path: Path, recordings: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(
        "import os, sys, torch\n"
        "child = os.fork()\n"
        "if child == 0: sys.exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "sys.exit(4)\n"
    )
    with start(*COMMAND, "run", script) as process:
        printed, error = process.communicate(timeout=PATIENCE_S)
    assert (printed, process.returncode) == ("0\n", 4), error
    assert re.fullmatch(r"recorded: .*\.kmsession\n", error)


def test_a_sitecustomize_of_the_users_own_runs_and_modules_run(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.of_the_user = True\n")
    (tmp_path / "shown.py").write_text(
        "import sys, sitecustomize\nprint(sys.of_the_user, sitecustomize.__file__, sys.argv)\n"
    )
    variables = outside(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    said = [
        subprocess.run([*words, "-m", "shown", "--x"], env=variables, capture_output=True, text=True, timeout=60).stdout
        for words in ([sys.executable], [*COMMAND, "run"])
    ]
    assert said[0] == said[1]
    assert said[0].startswith("True ")


def test_who_is_not_this_user_or_has_no_key_is_not_answered(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = RankServer("tcp://127.0.0.1:0")
    try:
        join = session_files.read(server.folder)
        local, remote = join.addresses
        request = terminal_requests.request()
        for address, keys, answered in ((local, join, True), (local, None, False), (remote, join, False)):
            client = Client(address, keys)
            try:
                client.send(request)
                assert client.answered(10.0 if answered else 0.5) == answered
            finally:
                client.close()
        assert "no frame of a rank" in " ".join(server.faults())
        other = RankServer()  # of other keys: its clients are not let in
        try:
            client = Client(local, join, secret=session_files.read(other.folder).secret)
            client.send(request)
            assert not client.answered(0.5)
            client.close()
        finally:
            other.stop()
        # The folder of a process that was killed goes, and that of another user is not read.
        dead = place / f"{PREFIX}dead"
        dead.mkdir()
        content = json.loads((Path(server.folder) / FILE).read_text("utf-8"))
        (dead / FILE).write_text(json.dumps({**content, "pid": 2**22 + 1}), "utf-8")
        assert called(capsys, "switch")[0] == 0
        assert not dead.exists()
        assert len(session_files.sessions()) == 1
        monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
        assert session_files.sessions() == []
    finally:
        server.stop()
