"""Finding a model: by name, by module, by file, and what is said when there is none."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runstate.errors import ModelMismatch, UnknownModel
from runstate.models.engine import ENGINE
from runstate.models.registry import find_model, installed_models, resolve_model

model_source = """
from __future__ import annotations

import msgspec

from runstate import Fact, TaggedModel


class Happened(msgspec.Struct, tag="happened", frozen=True):
    detail: Detail


class Detail(msgspec.Struct, frozen=True):
    {field}: int


class State(msgspec.Struct):
    count: int = 0


class Counter(TaggedModel[Happened, State]):
    name, version = "counter", 1
    events, state = Happened, State

    def evolve(self, state: State, fact: Fact[Happened]) -> State:
        return State(state.count + 1)


made = Counter()
"""


@pytest.fixture
def counter(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    # The name is the test's own: what was once imported stays in sys.modules.
    path = tmp_path / f"{request.node.name.split('[')[0]}.py"
    path.write_text(model_source.replace("{field}", "size"))
    return path


def test_a_model_is_found_by_its_name() -> None:
    assert find_model("engine") is ENGINE


def test_the_installed_models_are_listed() -> None:
    assert "engine" in installed_models()


def test_a_model_is_found_in_a_module() -> None:
    assert find_model("runstate.models.engine.model:ENGINE") is ENGINE


def test_a_models_class_will_do() -> None:
    assert type(find_model("runstate.models.engine.model:EngineModel")) is type(ENGINE)


def test_a_model_is_found_in_a_file(counter: Path) -> None:
    assert find_model(f"{counter}:Counter").name == "counter"


def test_an_instance_in_a_file_will_do(counter: Path) -> None:
    assert find_model(f"{counter}:made").name == "counter"


def test_a_file_may_be_named_relative_to_where_one_is(counter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(counter.parent)
    assert find_model(f"{counter.name}:Counter").name == "counter"


def test_a_model_is_made_once(counter: Path) -> None:
    assert find_model(f"{counter}:Counter") is find_model(f"{counter}:Counter")


def line(field: str) -> bytes:
    return b'{"stream":"s","key":"k","event":{"type":"happened","detail":{"%b":1}}}' % field.encode()


def test_two_files_of_one_name_are_two_models(tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    for field in ("size", "weight"):
        (tmp_path / field).mkdir()
        (tmp_path / field / "order.py").write_text(model_source.replace("{field}", field))
        found[field] = find_model(f"{tmp_path / field / 'order.py'}:Counter")
    for field, model in found.items():
        assert getattr(model.parse(line(field)).event.detail, field) == 1


def test_a_file_named_like_a_module_of_the_library_hides_nothing(tmp_path: Path) -> None:
    import json

    (tmp_path / "json.py").write_text(model_source.replace("{field}", "size"))
    model = find_model(f"{tmp_path / 'json.py'}:Counter")
    assert model.parse(line("size")).event.detail.size == 1
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nothing",
        "Engine",
        ":Counter",
        "engine:",
        "no.such.module:Counter",
        ".relative:Counter",
        "no_such_file.py:Counter",
        "runstate.models.engine:Nothing",
        "runstate.models.engine:",
    ],
)
def test_what_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(UnknownModel):
        find_model(name)


@pytest.mark.parametrize(
    "name",
    [
        "builtins:int",
        "runstate.models.canonical:parse",
        "runstate.models.engine:RunEventWrite",
        "runstate.models.model:Model",
        "runstate.models.tagged:TaggedModel",
        "runstate.errors:RunstateError",
    ],
)
def test_what_is_no_model_is_refused(name: str) -> None:
    with pytest.raises(UnknownModel):
        find_model(name)


def test_a_refusal_names_what_is_installed() -> None:
    with pytest.raises(UnknownModel, match="engine"):
        find_model("nothing")


def test_a_file_with_a_syntax_error_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "broken_model.py").write_text("class Counter(:\n")
    with pytest.raises(UnknownModel, match="syntax"):
        find_model(f"{tmp_path / 'broken_model.py'}:Counter")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class Counter(:\n", "SyntaxError: invalid syntax (reason.py, line 1)"),
        ("\nimport no_such_module_anywhere\n", "No module named 'no_such_module_anywhere' ({path}:2)"),
    ],
)
def test_a_reason_names_the_authors_own_file_and_line_alone(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "reason.py"
    path.write_text(text)
    with pytest.raises(UnknownModel) as refused:
        find_model(f"{path}:Counter")
    assert said.format(path=path) in str(refused.value)


def test_a_place_that_is_none_is_told_in_words() -> None:
    with pytest.raises(UnknownModel) as refused:
        find_model(":Counter")
    assert str(refused.value).endswith("cannot be loaded: ':Counter' names no place: write FILE.py:NAME")


def test_a_file_that_failed_once_can_be_mended(tmp_path: Path) -> None:
    path = tmp_path / "mended_model.py"
    path.write_text("import no_such_module_anywhere\n")
    with pytest.raises(UnknownModel, match="no_such_module_anywhere"):
        find_model(f"{path}:Counter")
    path.write_text(model_source.replace("{field}", "size") + "\n# mended\n")
    assert find_model(f"{path}:Counter").parse(line("size")).event.detail.size == 1


def test_a_model_that_is_installed_later_is_found(
    counter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownModel):
        find_model("came-later")
    package = tmp_path / "came_later-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: came-later\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[runstate.models]\ncame-later = {counter.stem}:made\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_model("came-later") is find_model("came-later")
    assert find_model("came-later").name == "counter"


# --- names that were read from data -----------------------------------------------------------------------------


def test_a_recorded_name_gives_the_installed_model() -> None:
    assert resolve_model("engine", None, "The archive") is ENGINE


def test_a_recorded_place_is_not_loaded(counter: Path) -> None:
    counter.write_text("raise AssertionError('this ran')")
    with pytest.raises(UnknownModel, match=r"does not load code that data names.*--model FILE\.py:CLASS"):
        resolve_model(f"{counter}:Counter", None, "The archive")


def test_a_recorded_module_is_not_loaded(counter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(counter.parent)
    for recorded in (f"{counter.stem}:made", counter.stem):
        with pytest.raises(UnknownModel):
            resolve_model(recorded, None, "The archive")
    assert counter.stem not in sys.modules


def test_a_recorded_name_that_is_not_installed_is_refused_with_what_to_pass() -> None:
    with pytest.raises(UnknownModel) as refused:
        resolve_model("orders", None, "The archive 'a'")
    assert str(refused.value) == (
        "The archive 'a' holds events of the model 'orders', which is not installed. Pass --model FILE.py:CLASS"
    )


def test_a_given_model_of_the_recorded_name_is_used(counter: Path) -> None:
    place = f"{counter}:Counter"
    assert resolve_model("counter", place, "The archive") is find_model(place)
    assert resolve_model("counter", find_model(place), "The archive") is find_model(place)


def test_a_given_model_of_another_name_is_refused_with_both_names(counter: Path) -> None:
    with pytest.raises(ModelMismatch, match="'orders', not of 'counter'"):
        resolve_model("orders", f"{counter}:Counter", "The archive")


def test_a_recorded_place_takes_the_given_model(counter: Path) -> None:
    assert resolve_model("elsewhere.py:Order", f"{counter}:Counter", "The table").name == "counter"


def test_an_installed_model_of_another_name_is_refused(
    counter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "other_name-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: other-name\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[runstate.models]\nother-name = {counter.stem}:made\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelMismatch, match="'other-name', not of 'counter'"):
        resolve_model("other-name", None, "The archive")


@pytest.mark.parametrize("recorded", ["", "\0", "../x", "\x1b[31m", "x" * 100_000])
def test_any_recorded_text_is_refused_in_one_short_line(recorded: str) -> None:
    with pytest.raises(UnknownModel) as refused:
        resolve_model(recorded, None, "The archive")
    assert len(str(refused.value)) < 500
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("name", ["twice", "engine"])
def test_a_name_that_two_packages_use_is_refused_and_both_are_named(
    counter: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for number in (1, 2):
        package = counter.parent / f"brings_{number}-1.0.dist-info"
        package.mkdir()
        (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: brings-{number}\nVersion: {number}.0\n")
        (package / "entry_points.txt").write_text(f"[runstate.models]\n{name} = module_{number}:Model\n")
    monkeypatch.syspath_prepend(counter.parent)
    monkeypatch.setattr("runstate.models.registry._found", {})
    for find in (partial(find_model, name), partial(resolve_model, name, None, "The log sqlite:x.db")):
        with pytest.raises(UnknownModel, match="Uninstall all but one, or pass --model") as refused:
            find()
        assert all(f"module_{number}:Model of brings-{number} {number}.0" in str(refused.value) for number in (1, 2))
