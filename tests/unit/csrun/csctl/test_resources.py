import json
import os
import re

import pytest

from cerebras_tensorflow.system import jobs
from csrun.csctl import actions, resources, server
from csrun.csctl.cli import main
from csrun.csctl.resources import Filters, ResourceError


def test_the_default_columns_are_the_documented_ones(home) -> None:
    job = jobs.submit(home, "CS2-01-01", "pipelined", labels={"model": "gptj"})
    job.wait_for_wafer(lambda: True)
    table = resources.get(home, "jobs")
    assert table.columns == ("NAME", "AGE", "PHASE", "SYSTEMS", "USER", "LABELS")
    assert table.rows == ((job.id, "0s", "RUNNING", "CS2-01-01", jobs.user_name(), "model=gptj"),)


@pytest.mark.parametrize("seconds", [-0.5, -5, -86400])
def test_an_age_is_0_after_the_clock_went_back(seconds: float) -> None:
    assert resources.age(seconds) == "0s"


def test_finished_jobs_are_shown_on_request(home) -> None:
    job = jobs.submit(home, "lab", "pipelined")
    job.finish(jobs.SUCCEEDED)
    assert resources.get(home, "jobs").rows == ()
    assert [row[2] for row in resources.get(home, "jobs", filters=Filters(all_states=True)).rows] == ["SUCCEEDED"]


def test_a_queued_job_has_no_system_yet(home) -> None:
    jobs.submit(home, "lab", "pipelined")
    assert resources.get(home, "jobs").rows[0][2:4] == ("QUEUED", "")


def test_labels_and_users_filter(home) -> None:
    jobs.submit(home, "lab", "pipelined", labels={"a": "1"})
    kept = jobs.submit(home, "lab", "pipelined", labels={"a": "2"})
    table = resources.get(home, "jobs", filters=Filters(labels={"a": "2"}, user=jobs.user_name()))
    assert [row[0] for row in table.rows] == [kept.id]
    assert resources.get(home, "jobs", filters=Filters(user="nobody else")).rows == ()


def test_an_unknown_job_or_resource_type_is_an_error(home) -> None:
    with pytest.raises(ResourceError, match="job nope not found"):
        resources.get(home, "job", "nope")
    with pytest.raises(ResourceError, match="resource type foo not found"):
        resources.get(home, "foo")


@pytest.mark.parametrize("value", ["a b", "$(x)", "x" * 64, "a,b", "a=b", "../x\n"])
def test_a_malformed_label_is_refused(home, value: str) -> None:
    job = jobs.submit(home, "lab", "pipelined")
    with pytest.raises(ResourceError, match="is not a label"):
        actions.label(home, job.id, {"key": value})


@pytest.mark.parametrize("name", ["../../etc/passwd", "wsjob-x/../../x", "' OR 1=1 --"])
def test_a_job_name_is_never_used_as_a_path_or_query(home, tmp_path, name: str) -> None:
    jobs.submit(home, "lab", "pipelined")
    with pytest.raises(ResourceError, match="not found"):
        actions.export_log(home, name, tmp_path)


def test_an_ended_job_cannot_be_cancelled(home) -> None:
    job = jobs.submit(home, "lab", "pipelined")
    job.finish(jobs.SUCCEEDED)
    with pytest.raises(ResourceError, match="has ended already: SUCCEEDED"):
        actions.request_cancel(home, job.id, "alice")


def test_a_list_of_jobs_reads_only_the_records_that_it_shows(home, monkeypatch: pytest.MonkeyPatch) -> None:
    first = jobs.submit(home, "lab", "pipelined").record
    values = {**first.__dict__, "phase": jobs.SUCCEEDED, "labels": json.dumps({"a": "1"}), "finished_at": 0.0}
    del values["number"]
    from cerebras_tensorflow.system import database as store

    with store.transaction(jobs.jobs_file(home)) as connection:
        marks = ", ".join("?" for _ in values)
        connection.executemany(
            f"INSERT INTO jobs ({', '.join(values)}) VALUES ({marks})",
            [tuple({**values, "id": f"wsjob-{number:022d}"}.values()) for number in range(10_000)],
        )
    # The time of the whole command with so many jobs: scripts/bench/bench_launcher.py.
    read: list[str] = []
    from_row = jobs.from_row
    monkeypatch.setattr(jobs, "from_row", lambda row: (read.append(row["id"]), from_row(row))[1])
    assert len(resources.get(home, "jobs").rows) == len(read) == 1
    read.clear()
    assert len(resources.get(home, "jobs", filters=Filters(all_states=True)).rows) == len(read) == 5000


def test_check_volumes_says_what_can_be_mounted(home, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-volumes"]) == 1
    assert "this site has no volumes; list them in" in capsys.readouterr().err
    (tmp_path / "data").mkdir()
    home.mkdir(exist_ok=True)
    (home / "site.conf").write_text(f"MOUNT_DIRS={tmp_path}/data,/no/such\n")
    assert main(["check-volumes"]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "SERVERPATH", "CONTAINERPATH", "VALIDMOUNTDIR", "ALLOWVENV", "DETAILS"]
    assert first.split()[1:] == [f"{tmp_path}/data", f"{tmp_path}/data", "true", "true"]
    assert second.split(maxsplit=5)[1:] == ["/no/such", "/no/such", "false", "false", "no such folder on this machine"]
    assert main(["check-volumes", "-o", "json"]) == 0
    assert [item["pathExists"] for item in json.loads(capsys.readouterr().out)["items"]] == [True, False]


def test_clear_worker_cache_says_that_there_is_none(home, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clear-worker-cache"]) == 0
    assert capsys.readouterr().out == "Nothing to clear: the workers of the simulated systems keep no cache\n"


@pytest.mark.parametrize(
    "words",
    [
        *("system-maintenance create membist", "debug-artifact get job", "session create x", "user block"),
        *("job topology", "completion --help", "help completion", "session create -h"),
    ],
)
def test_a_documented_command_that_is_not_simulated_says_so(
    words: str, home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 1
    assert re.fullmatch(
        rf"Error: csctl {words.removeprefix('help ')[:4]}.* is not simulated: .+\n", capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("get jobs --version 2.6", "csctl get --version"),
        ("get jobs --workflow w", "csctl get --workflow"),
        ("get jobs -d2 -ojson", "csctl get -d"),
        ("--csconfig /x get jobs", "csctl --csconfig"),
        ("job list --csconfig /x", "csctl job list --csconfig"),
        ("get jobs --debug 2", "csctl --debug N"),
        ("log-export job -bc", "csctl log-export --binaries"),
        ("log-export job --num-lines 3", "csctl log-export --num-lines"),
        ("-n job-operator session create x", "csctl session create"),
        ("completion bash", "csctl completion"),
    ],
)
def test_a_documented_option_that_is_not_simulated_says_so(
    words: str, shown: str, home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 1
    assert re.fullmatch(rf"Error: {shown} is not simulated: .+\n", capsys.readouterr().err)


def test_documented_options_apply_after_the_command_too(home, capsys: pytest.CaptureFixture[str]) -> None:
    job = jobs.submit(home, "lab", "pipelined")
    assert main(["label", "job", job.id, "model=gptj", "-ojson", "-n", "job-operator"]) == 0
    assert json.loads(capsys.readouterr().out)["meta"]["labels"] == {"model": "gptj"}
    assert main(["job", "set-priority", job.id, "p1", "-ojson"]) == 0
    assert json.loads(capsys.readouterr().out)["spec"]["priority"] == "P1 (199)"
    assert main(["get", "jobs", "-owide"]) == 0
    assert job.id in capsys.readouterr().out
    assert main(["session", "list", "--redundant", "-u", "-ojson"]) == 0
    assert json.loads(capsys.readouterr().out) == {}


def test_help_takes_the_name_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["help", "job", "list"])
    assert capsys.readouterr().out.startswith("usage: csctl job list ")


def test_the_version_has_its_documented_column(home) -> None:
    assert resources.get(home, "version").columns == ("COMPONENT", "VERSION")


def test_a_job_with_a_higher_priority_starts_first(home, capsys: pytest.CaptureFixture[str]) -> None:
    running = jobs.submit(home, "lab", "pipelined")
    running.wait_for_wafer(lambda: True)
    early, late = (jobs.submit(home, "lab", "pipelined") for _ in range(2))
    assert main(["job", "set-priority", late.id, "p1"]) == 0
    assert capsys.readouterr().out == f"successfully updated {late.id} job priority to p1\n"
    assert main(["job", "list", "--sort", "priority", "-ojson"]) == 0
    shown = json.loads(capsys.readouterr().out)["items"]
    assert [(item["meta"]["name"], item["spec"]["priority"]) for item in shown] == [
        (late.id, "P1 (199)"),
        (running.id, "P2 (299)"),
        (early.id, "P2 (299)"),
    ]
    running.finish(jobs.SUCCEEDED)
    waiting = early.try_start(lambda: True)
    assert waiting is not None and late.id in waiting.reason
    assert late.try_start(lambda: True) is None
    late.finish(jobs.FAILED)
    assert early.try_start(lambda: True) is None
    assert main(["job", "list", "-e", "-ojson"]) == 0
    assert [item["meta"]["name"] for item in json.loads(capsys.readouterr().out)["items"]] == [late.id]
    assert main(["job", "set-priority", late.id, "p3"]) == 1
    assert "has ended" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("priority", "message"),
    [
        ("p4", "expected p1, p2, p3 or a number from 100 to 399; an administrator may"),
        ("0", "expected p1"),
        ("high", "expected p1"),
        ("150", "not found"),
    ],
)
def test_a_wrong_priority_is_refused(home, priority: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "set-priority", "wsjob-nope", priority]) == 1
    assert message in capsys.readouterr().err


def test_only_the_owner_changes_a_priority(home) -> None:
    job = jobs.submit(home, "lab", "pipelined")
    with pytest.raises(ResourceError, match="belongs to"):
        actions.set_priority(home, job.id, 150, jobs.record(home, job.number).uid + 1)
    actions.set_priority(home, job.id, 150, jobs.record(home, job.number).uid)
    assert jobs.record(home, job.number).priority == 150


@pytest.mark.parametrize("said", ["owner", "0"])
def test_a_remote_client_has_the_rights_of_the_servers_user_whoever_it_says_it_is(
    home, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Context:
        def invocation_metadata(self):
            return (("auth-uid", said if said == "0" else str(owner)),)

        def abort(self, _code, text: str):
            raise PermissionError(text)

    job = jobs.submit(home, "lab", "pipelined")
    owner = jobs.record(home, job.number).uid
    request = server.api.UpdateJobPriorityRequest(job_id=job.id, job_priority="p1")
    service = server.CsCtl(home)
    with service._folder:
        with monkeypatch.context() as patch, pytest.raises(PermissionError, match="belongs to"):
            patch.setattr(os, "getuid", lambda: owner + 1)
            service.UpdateJobPriority(request, Context())
        assert jobs.record(home, job.number).priority == 299
        service.UpdateJobPriority(request, Context())
        assert jobs.record(home, job.number).priority == 199


def test_cluster_parts_are_chosen_by_role(home, capsys: pytest.CaptureFixture[str]) -> None:
    for words, expected in ((["--node-only"], {"worker"}), (["--role", "management"], set())):
        assert main(["get", "cluster", "-ojson", *words]) == 0
        assert {item["role"] for item in json.loads(capsys.readouterr().out).get("items", [])} == expected


@pytest.mark.parametrize("words", [["cluster", "topology"], ["session", "list"]])
def test_what_this_machine_lacks_is_said(words: list[str], home, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("No ")
