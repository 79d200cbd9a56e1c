"""Publishing to GitHub against a server that enforces its limits, permissions and rate limits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from regress.errors import UsageError
from regress.forge.actions_job import actions_job
from regress.forge.github import GithubOptions, Published, publish_github
from regress.record import Verdict
from regress.result import result_json
from tests.github.fake import FakeGithub, Reply, fake_github
from tests.github.jobs import job, pull_event, workflow_run_event
from tests.github.runs import SHA, big_result, quiet_json, recorded_json

MARKER = "<!-- comm-regress gate -->"


@pytest.fixture
def github() -> Iterator[FakeGithub]:
    with fake_github() as server:
        yield server


def publish(environment: dict[str, str], content: bytes = b"", *, options: GithubOptions | None = None,
            slept: list[float] | None = None, lines: list[str] | None = None,
            paths: dict[str, Path | None] | None = None) -> Published:
    return publish_github(content or recorded_json(), environment, options=options, paths=paths or {},
                          write=(lines if lines is not None else []).append,
                          sleep=(slept if slept is not None else []).append)


def test_a_pull_request_gets_one_comment_that_is_updated_in_place(github: FakeGithub, tmp_path: Path) -> None:
    environment = job(tmp_path, github.url, pull_event())
    first = publish(environment)
    second = publish(environment, quiet_json())
    assert "pull request 7 commented" in first.done
    assert "comment of pull request 7 updated" in second.done
    (body,) = github.bodies(7)
    assert body.startswith(f"{MARKER}\n## ✅ comm-regress: PASS")


def test_the_own_comment_is_found_on_the_third_page(github: FakeGithub, tmp_path: Path) -> None:
    for number in range(250):
        github.add_comment(7, f"talk {number}", kind="User", mine=False)
    github.add_comment(7, f"{MARKER}\nold")
    assert publish(job(tmp_path, github.url, pull_event())).failures == ()
    assert github.bodies(7)[-1].startswith(f"{MARKER}\n## ❌")
    assert len(github.bodies(7)) == 251


def test_a_person_who_copies_the_marker_is_not_overwritten(github: FakeGithub, tmp_path: Path) -> None:
    github.add_comment(7, f"{MARKER}\nall is well", kind="User", mine=False)
    publish(job(tmp_path, github.url, pull_event()))
    assert github.bodies(7)[0] == f"{MARKER}\nall is well"
    assert len(github.bodies(7)) == 2


def test_two_gates_have_a_comment_each(github: FakeGithub, tmp_path: Path) -> None:
    environment = job(tmp_path, github.url, pull_event())
    for key in ("h200", "a100", "h200"):
        publish(environment, options=GithubOptions(key=key))
    assert [body.split("\n")[0] for body in github.bodies(7)] == ["<!-- comm-regress h200 -->",
                                                                  "<!-- comm-regress a100 -->"]


def test_a_quiet_pull_request_is_not_commented_unless_asked(github: FakeGithub, tmp_path: Path) -> None:
    environment = job(tmp_path, github.url, pull_event())
    published = publish(environment, quiet_json())
    assert "no comment on pull request 7: nothing to report, and none to bring up to date" in published.done
    publish(environment, quiet_json(Verdict.NO_BASELINE), options=GithubOptions(comment="always"))
    assert "NO BASELINE" in github.bodies(7)[0]


def test_a_read_only_token_of_a_fork_is_explained_and_nothing_fails(github: FakeGithub, tmp_path: Path) -> None:
    github.writable = set()
    published = publish(job(tmp_path, github.url, pull_event(fork=True)), options=GithubOptions(check="auto"))
    assert published.failures == ()
    explained = [line for line in published.done if "Resource not accessible by integration" in line]
    assert len(explained) == 2
    assert all("pull request from a fork is read-only" in line for line in explained)
    assert "REGRESSION" in (tmp_path / "summary.md").read_text()


def test_a_missing_permission_is_named(github: FakeGithub, tmp_path: Path) -> None:
    github.writable = set()
    published = publish(job(tmp_path, github.url, pull_event()))
    assert any("pull-requests: write" in line for line in published.done)


def test_a_wrong_token_is_no_failure_either(github: FakeGithub, tmp_path: Path) -> None:
    published = publish(job(tmp_path, github.url, pull_event(), token="ghs_wrong"))
    assert any("Bad credentials" in line for line in published.done)
    assert not any("ghs_wrong" in line for line in published.done)


def test_without_a_token_nothing_is_asked(github: FakeGithub, tmp_path: Path) -> None:
    published = publish(job(tmp_path, github.url, pull_event(), token=None))
    assert "no comment: GITHUB_TOKEN is not set" in published.done
    assert github.requests == []


def test_a_push_has_no_comment(github: FakeGithub, tmp_path: Path) -> None:
    published = publish(job(tmp_path, github.url, None))
    assert "no comment: this is no pull request" in published.done


def test_workflow_run_takes_the_number_from_the_event(github: FakeGithub, tmp_path: Path) -> None:
    publish(job(tmp_path, github.url, workflow_run_event(12)))
    assert len(github.bodies(12)) == 1
    assert "/actions/runs/4242" in github.bodies(12)[0]


def test_workflow_run_of_a_fork_finds_the_pull_request_by_its_head(github: FakeGithub, tmp_path: Path) -> None:
    github.pulls = [{"number": 3, "owner": "stranger", "head": {"sha": "b" * 40}},
                    {"number": 4, "owner": "stranger", "head": {"sha": SHA}}]
    publish(job(tmp_path, github.url, workflow_run_event(None, fork=True)))
    assert list(github.comments) == [4]


def test_workflow_run_of_a_push_has_no_comment(github: FakeGithub, tmp_path: Path) -> None:
    github.pulls = [{"number": 4, "owner": "org", "head": {"sha": SHA}}]
    published = publish(job(tmp_path, github.url, workflow_run_event(None, event="push")))
    assert "no comment: this is no pull request" in published.done


@pytest.mark.parametrize(("verdict_json", "conclusion"), [
    (recorded_json(), "failure"), (quiet_json(), "success"), (quiet_json(Verdict.NO_BASELINE), "neutral")])
def test_check_run(github: FakeGithub, tmp_path: Path, verdict_json: bytes, conclusion: str) -> None:
    publish(job(tmp_path, github.url, pull_event()), verdict_json, options=GithubOptions(check="auto"))
    (check,) = github.checks
    assert check["conclusion"] == conclusion
    assert check["head_sha"] == SHA


def test_a_huge_result_is_within_every_limit(github: FakeGithub, tmp_path: Path) -> None:
    lines: list[str] = []
    content = result_json(big_result(5_000, "slower and slower " * 10))
    published = publish(job(tmp_path, github.url, pull_event()), content, options=GithubOptions(check="auto"),
                        lines=lines)
    assert published.failures == ()
    assert len(github.bodies(7)) == len(github.checks) == 1
    assert (tmp_path / "summary.md").stat().st_size <= 900 * 1024
    assert sum(line.startswith("::error ") for line in lines) == 10


def test_an_enterprise_server_has_its_own_address(tmp_path: Path) -> None:
    with fake_github("/api/v3") as server:
        publish(job(tmp_path, server.url, pull_event()))
        assert len(server.bodies(7)) == 1
        assert all(line.split()[1].startswith("/api/v3/") for line in server.requests)


LIMITED = b'{"message": "You have exceeded a secondary rate limit."}'


@pytest.mark.parametrize(("reply", "waits"), [
    (Reply(429, {"retry-after": "17"}), [17.0]),
    (Reply(403, {"retry-after": "5"}, LIMITED), [5.0]),
    (Reply(403, {}, LIMITED), [60.0]),
    (Reply(502, {}, b"<html>bad gateway</html>"), [1.0]),
])
def test_rate_limits_and_hiccups_are_waited_for(github: FakeGithub, tmp_path: Path, reply: Reply,
                                                waits: list[float]) -> None:
    github.replies = [reply]
    slept: list[float] = []
    published = publish(job(tmp_path, github.url, pull_event()), slept=slept)
    assert published.failures == ()
    assert slept == waits
    assert len(github.bodies(7)) == 1


def test_a_long_rate_limit_is_a_failure_that_says_how_long(github: FakeGithub, tmp_path: Path) -> None:
    github.replies = [Reply(403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "99999999999"}, LIMITED)]
    slept: list[float] = []
    (failure,) = publish(job(tmp_path, github.url, pull_event()), slept=slept).failures
    assert "the rate limit ends in" in failure
    assert slept == []
    assert (tmp_path / "summary.md").is_file()


def test_a_server_that_stays_down_is_a_failure_after_five_tries(github: FakeGithub, tmp_path: Path) -> None:
    github.replies = [Reply(500)] * 9
    slept: list[float] = []
    (failure,) = publish(job(tmp_path, github.url, pull_event()), slept=slept).failures
    assert "500" in failure
    assert slept == [1.0, 2.0, 4.0, 8.0]


def test_no_server_is_a_failure_without_the_token(tmp_path: Path) -> None:
    environment = job(tmp_path, "http://127.0.0.1:9", pull_event())
    (failure,) = publish(environment).failures
    assert "no answer" in failure
    assert environment["GITHUB_TOKEN"] not in failure


def test_something_else_that_answers_is_a_failure(github: FakeGithub, tmp_path: Path) -> None:
    github.replies = [Reply(200, {}, b"<html>login</html>")]
    (failure,) = publish(job(tmp_path, github.url, pull_event())).failures
    assert "without JSON" in failure


def test_outputs_hold_paths_with_line_breaks_without_setting_others(github: FakeGithub, tmp_path: Path) -> None:
    publish(job(tmp_path, github.url, None), paths={"json-path": Path("a\nverdict=pass"), "report-path": None})
    text = (tmp_path / "output").read_text()
    values = {name: value for name, end, value in
              re.findall(r"^([\w-]+)<<(end_[0-9a-f]{32})\n(.*?)\n\2$", text, re.MULTILINE | re.DOTALL)}
    assert values == {"verdict": "regression", "exit-status": "1", "json-path": "a\nverdict=pass"}


def test_the_token_is_in_no_representation(github: FakeGithub, tmp_path: Path) -> None:
    environment = job(tmp_path, github.url, pull_event())
    assert environment["GITHUB_TOKEN"] not in repr(actions_job(environment))


@pytest.mark.parametrize(("changes", "seen"), [
    ({"GITHUB_REPOSITORY": "../.."}, "GITHUB_REPOSITORY"),
    ({"GITHUB_REPOSITORY": ""}, "GITHUB_REPOSITORY"),
    ({"GITHUB_API_URL": "file:///etc"}, "GITHUB_API_URL"),
    ({"GITHUB_EVENT_PATH": "/nowhere"}, "GITHUB_EVENT_PATH"),
])
def test_variables_that_describe_no_job_are_a_usage_error(tmp_path: Path, changes: dict[str, str], seen: str) -> None:
    with pytest.raises(UsageError, match=seen):
        publish(job(tmp_path, "http://127.0.0.1:9", None) | changes)
