"""run, resume, status, as a user meets them: the worked example, real processes, real signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

example = Path(__file__).parents[2] / "examples" / "site"


class Site:
    """The example in a directory of its own, and the command that builds it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        shutil.copytree(example, directory / "site", ignore=shutil.ignore_patterns("__pycache__"))

    def command(self, *arguments: str) -> list[str]:
        return [str(Path(sys.executable).parent / "runstate"), *arguments]

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=60,
            env=os.environ | {"NO_COLOR": "1"},
        )

    def state(self, run: str = "b1") -> Any:
        return json.loads(self("status", run, "--json").stdout)

    def items(self, run: str = "b1") -> list[str]:
        return [item["work_item_id"] for item in self.state(run)["work_items"]]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def built(site: Site) -> Site:
    done = site("run", "site/site.py:graph", "--id", "b1")
    assert done.returncode == 0, done.stderr
    return site


pytestmark = pytest.mark.slow


def test_a_run_builds_the_site_and_fixes_its_index(built: Site) -> None:
    index = (built.directory / "runs/b1/artifacts/site/index.html").read_text()
    assert "Logs are the truth</a>" in index
    assert built.state()["run_state"] == "COMPLETED"


def test_status_shows_work_items_artifacts_and_issues(built: Site) -> None:
    shown = built("status", "runs/b1")
    assert shown.returncode == 0
    assert "write_page logs" in shown.stdout
    assert "site/index.html" in shown.stdout
    assert "RESOLVED" in shown.stdout


def test_resuming_a_finished_run_does_nothing(built: Site) -> None:
    before = (built.directory / "runs/b1/events.ndjson").read_bytes()
    assert built("resume", "b1").returncode == 0
    assert (built.directory / "runs/b1/events.ndjson").read_bytes() == before


def test_changing_one_post_builds_its_page_and_the_index_again_and_nothing_else(built: Site) -> None:
    known = set(built.items())
    post = built.directory / "site/posts/retries.md"
    post.write_text(post.read_text() + "\nOnce more.\n")
    assert built("resume", "b1").returncode == 0
    new = [item for item in built.items() if item not in known]
    assert {item.split(":")[1] + " " + item.split(":")[3] for item in new if "round" not in item} == {
        "parse retries",
        "write_page retries",
        "write_index -",
    }


def test_forcing_a_node_does_it_again(built: Site) -> None:
    known = set(built.items())
    assert built("resume", "b1", "--force", "reading").returncode == 0
    assert {"b1:parse:2:logs", "b1:parse:2:crashes", "b1:parse:2:retries"} <= set(built.items()) - known


def test_the_snapshot_is_what_a_replay_gives(built: Site) -> None:
    before = (built.directory / "runs/b1/snapshot.json").read_bytes()
    assert built("replay", "ndjson:runs", "--check").returncode == 0
    assert built("replay", "ndjson:runs", "b1").returncode == 0
    assert (built.directory / "runs/b1/snapshot.json").read_bytes() == before


def test_the_log_verifies_and_an_edit_is_found(built: Site) -> None:
    assert built("verify", "ndjson:runs").returncode == 0
    log = built.directory / "runs/b1/events.ndjson"
    log.write_bytes(log.read_bytes().replace(b"READING", b"WAITING", 1))
    found = built("verify", "ndjson:runs")
    assert found.returncode == 1
    assert "b1:" in found.stdout


def test_repair_keeps_what_is_intact_and_the_damaged_file_beside_it(built: Site) -> None:
    directory = built.directory / "runs/b1"
    log = directory / "events.ndjson"
    damaged = log.read_bytes().replace(b"READING", b"WAITING", 1)
    log.write_bytes(damaged)
    planned = built("repair", "ndjson:runs", "--dry-run")
    assert (planned.returncode, log.read_bytes()) == (0, damaged)
    assert "b1:" in planned.stdout
    assert built("repair", "ndjson:runs", "b1").returncode == 0
    assert any(file.read_bytes() == damaged for file in directory.iterdir() if "damaged" in file.name)
    assert damaged.startswith(log.read_bytes())
    assert built("verify", "ndjson:runs").returncode == 0
    assert built("resume", "b1").returncode == 0


def test_a_snapshot_that_is_garbage_is_rebuilt(built: Site) -> None:
    snapshot = built.directory / "runs/b1/snapshot.json"
    before = snapshot.read_bytes()
    snapshot.write_bytes(b"{nonsense")
    assert built("resume", "b1").returncode == 0
    assert snapshot.read_bytes() == before


def test_parameters_reach_the_workers(site: Site) -> None:
    (site.directory / "app.py").write_text(
        "from runstate.runtimes.orchestrator import Graph\n"
        "graph = Graph('p')\n"
        "node = graph.node('n')\n"
        "@node.worker(outputs=['out.json'])\n"
        "def work(job): job.write_json('out.json', dict(job.parameters))\n"
    )
    assert site("run", "app.py:graph", "--id", "p1", "-p", "count=3", "-p", "name=x").returncode == 0
    written = json.loads((site.directory / "runs/p1/artifacts/out.json").read_text())
    assert written == {"count": 3, "name": "x"}


def test_a_failure_leaves_a_blocker_a_summary_and_exit_code_1_and_can_be_resumed(site: Site) -> None:
    app = site.directory / "app.py"
    text = (
        "from runstate.runtimes.orchestrator import Graph\n"
        "graph = Graph('f')\n"
        "node = graph.node('n')\n"
        "@node.worker(outputs=['out.txt'])\n"
        "def work(job): {}\n"
    )
    app.write_text(text.format("raise ValueError('no luck')"))
    failed = site("run", "app.py:graph", "--id", "f1")
    assert failed.returncode == 1
    assert "run.failed" in failed.stderr
    assert "no luck" in (site.directory / "runs/f1/failure.md").read_text()
    assert [i["severity"] for i in site.state("f1")["issues"]] == ["blocker"]
    app.write_text(text.format("job.write('out.txt', 'x')"))
    assert site("resume", "f1").returncode == 0
    assert [i["status"] for i in site.state("f1")["issues"]] == ["RESOLVED"]


def test_a_run_is_not_resumed_with_another_graph(built: Site) -> None:
    (built.directory / "app.py").write_text(
        "from runstate.runtimes.orchestrator import Graph\n"
        "graph = Graph('other')\n"
        "@graph.node('n').worker(outputs=['out.txt'])\n"
        "def work(job): job.write('out.txt', 'x')\n"
    )
    refused = built("resume", "b1", "--app", "app.py:graph")
    assert (refused.returncode, "graph.invalid" in refused.stderr) == (2, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cancels_in_good_order_and_resume_goes_on(site: Site, number: signal.Signals) -> None:
    (site.directory / "app.py").write_text(
        "import os, time\n"
        "from runstate.runtimes.orchestrator import Graph\n"
        "graph = Graph('c')\n"
        "node = graph.node('n')\n"
        "@node.worker(outputs=['out.txt'])\n"
        "def work(job):\n"
        "    open('started', 'w').close()\n"
        "    while not os.path.exists('go'): time.sleep(0.01)\n"
        "    job.write('out.txt', 'x')\n"
    )
    running = subprocess.Popen(
        site.command("run", "app.py:graph", "--id", "c1"), cwd=site.directory, stderr=subprocess.PIPE
    )
    while not (site.directory / "started").exists():
        assert running.poll() is None
    running.send_signal(number)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 130
    assert b"go on with: runstate resume runs/c1" in err
    assert b"run.cancelled" in err
    assert site.state("c1")["run_state"] == "CANCELLED"
    (site.directory / "go").touch()
    assert site("resume", "c1").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("run", "missing.py:graph"), 2, "graph.invalid"),
        (("run", "site/site.py:nothing"), 2, "graph.invalid"),
        (("run", "site/site.py"), 2, "graph.invalid"),
        (("run", "site/site.py:graph", "--id", "../x"), 2, "stream.invalid"),
        (("run", "site/site.py:graph", "--id", "b1"), 2, "run.exists"),
        (("resume", "missing"), 3, "stream.not_found"),
        (("resume", "runs/missing"), 3, "log.not_found"),
        (("resume", "b1", "--force", "nothing"), 2, "graph.invalid"),
        (("status", "missing"), 3, "stream.not_found"),
        (("status", "b1", "--runs", "nowhere"), 3, "log.not_found"),
        (("run", "site/site.py:graph", "--telemetry", "ftp://x"), 2, "url.invalid"),
    ],
)
def test_a_wrong_argument_says_what_is_wrong(built: Site, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = built(*arguments)
    assert done.returncode == code
    assert said in done.stderr
