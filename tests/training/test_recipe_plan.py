"""Recipes: how they are read, what is refused, and which steps they come to."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import pytest

from pasta_async import InvalidRequestError
from pasta_async.training.recipe import PACKAGED, find_recipe, read_recipe
from pasta_async.training.run import Plan, as_arguments, main
from pasta_async.training.synthetic.records import draw_records
from pasta_async.training.trainer.settings import TrainerSettings

OUT = Path("runs/x")


def recipe_file(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


SMALL = """
base = "there"
[data.source]
data = "answers.jsonl"
[stage1.variants.own]
annotator = "given"
"""


def plan(name: str, *settings: str) -> Plan:
    return Plan(read_recipe(find_recipe(name), settings), OUT)


def flags(made: Plan, name: str) -> dict[str, Any]:
    return dict(made.steps[name].options)


@pytest.mark.parametrize("path", sorted(PACKAGED.glob("*.toml")), ids=lambda path: path.stem)
def test_every_packaged_recipe_can_be_planned(path: Path) -> None:
    made = Plan(read_recipe(path), OUT)
    seen: set[str] = set()
    for step in made.steps.values():
        assert {need.name for need in step.needs} <= seen
        assert step.result.is_relative_to(OUT / step.name)
        seen.add(step.name)
    assert len(seen) == len(made.steps)
    assert f"evaluation/{made.models[-1].name}" in seen
    assert made.models[0].name == "stage1/baseline"


def test_a_recipe_lies_over_the_one_it_extends(tmp_path: Path) -> None:
    path = recipe_file(tmp_path, 'extends = "pasta-tiny"\n[data.synthetic]\ncount = 7\n')
    over = recipe_file(tmp_path, 'extends = "mine.toml"\n[stage2]\nrounds = 1\n', "over.toml")
    tiny, recipe = read_recipe(find_recipe("pasta-tiny")), read_recipe(over)
    assert recipe.data.synthetic == {**(tiny.data.synthetic or {}), "count": 7}
    assert (recipe.stage2, tiny.stage2) != (None, None)
    assert recipe.stage2 is not None
    assert recipe.stage2.rounds == 1
    assert recipe.stage1 == tiny.stage1
    assert path.exists()


def test_values_of_the_command_line_come_last() -> None:
    recipe = read_recipe(
        find_recipe("pasta-tiny"), ["stage1.train.lr=2e-4", "stage2.quality_weights=[0.5, inf]", "title=a b"]
    )
    assert recipe.stage1.train["lr"] == 2e-4
    assert recipe.stage2 is not None
    assert recipe.stage2.quality_weights == (0.5, math.inf)
    assert recipe.title == "a b"


def test_a_path_from_the_recipes_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    under = SMALL + '[stage1.train]\nchat_template = "{here}/mine.jinja"\n'
    recipe_file(tmp_path / "sub", under, "under.toml")
    recipe = read_recipe(recipe_file(tmp_path, 'extends = "sub/under.toml"\n'))
    assert recipe.stage1.train["chat_template"] == str(tmp_path / "sub/mine.jinja")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SMALL + "[stage3]\n", "stage3: "),
        (SMALL + "[stage1.variants.other]\nannotator = 'nobody'\n", "stage1.variants.other.annotator"),
        (SMALL + "[stage1.variants.other]\nannotator = 'noisy'\n", "data.synthetic"),
        (SMALL + "[stage1.variants.other]\nannotator = 'endpoint'\n", "data.annotator"),
        (SMALL + "[stage1.variants.baseline]\nannotator = 'points'\n", "baseline"),
        (SMALL + "[stage2]\nstart = 'other'\nprompts = 5\n", "'other'"),
        (SMALL + "[stage2]\nstart = 'own'\nprompts = 5\nquality_weights = [-1]\n", "stage2.quality_weights"),
        (SMALL.replace('"there"', '""'), "base"),
        (SMALL + "[data.synthetic]\ncount = 1\n", "data"),
        (SMALL.replace("[data.source]", "[data.other]"), "data.other: "),
        ("extends = 'mine.toml'\n", "mine.toml"),
        ("extends = 'nowhere'\n", "llama-8b, pasta-smol, pasta-tiny, smoke"),
        ("base = ", "toml"),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        read_recipe(recipe_file(tmp_path, text))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["stage1.train.lr"], "key=value"),
        (["title.deep=1"], "title: "),
        (["stage1.train.epoch=1"], "stage1/baseline .*: epoch: "),
        (["stage2.train.lr=-1"], "round1/lambda1 .*: lr: "),
        (["stage2.sample.n=many"], "samples/round1 .*: n: "),
        (["stage1.train.out=here"], "stage1/baseline: out "),
    ],
)
def test_flags_that_do_not_fit_are_refused_before_anything_runs(settings: list[str], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        plan("pasta-tiny", *settings)


def test_the_baseline_is_trained_on_the_same_data_and_as_long() -> None:
    made = plan("pasta-tiny", "stage1.train.epochs=3")
    own, baseline = (flags(made, f"stage1/{name}") for name in ("noisy", "baseline"))
    assert (own["form"], baseline["form"]) == ("both", "plain")
    assert baseline["epochs"] == 2 * own["epochs"] == 6  # two examples of each answer, or one
    same = {name: value for name, value in own.items() if name not in ("out", "form", "epochs")}
    assert same.items() <= baseline.items()


def test_rounds_sample_from_the_model_before_with_fresh_prompts() -> None:
    made = plan("pasta-tiny")
    weights = ["1", "2", "4", "8", "inf"]
    for weight in weights:
        first, second = (flags(made, f"round{number}/lambda{weight}") for number in (1, 2))
        assert first["quality_weight"] == second["quality_weight"] == weight
        assert first["samples"] == f"{OUT}/samples/round1/samples.jsonl"
        assert first["model"] == f"{OUT}/stage1/noisy/model"
        assert second["samples"] == f"{OUT}/samples/round2/lambda{weight}/samples.jsonl"
        assert second["model"] == f"{OUT}/round1/lambda{weight}/model"
        drawn = flags(made, f"samples/round2/lambda{weight}")
        assert drawn["backend"] == f"local:{OUT}/round1/lambda{weight}/model"
        assert drawn["baseline"] == f"local:{OUT}/stage1/baseline/model"
    assert [name for name in made.steps if name.startswith("samples/round1")] == ["samples/round1"]
    assert flags(made, "prompts/round1")["seed"] != flags(made, "data/plain")["seed"]
    drawn = [flags(made, f"samples/{where}") for where in ("round1", "round2/lambda4")]
    assert [(one["skip"], one["limit"]) for one in drawn] == [(0, 400), (400, 400)]
    assert [flags(made, f"prompts/round{number}")["count"] for number in (1, 2)] == [400, 800]
    some, more = ([*draw_records(count, seed=1)] for count in (4, 8))
    assert some == more[:4]  # so the second round's are none of the first's


@pytest.mark.parametrize("name", ["pasta-smol", "pasta-tiny", "llama-8b"])
def test_a_further_round_leaves_those_before_as_they_are(name: str) -> None:
    before, after = (plan(name, f"stage2.rounds={rounds}").steps for rounds in (1, 2))
    assert {step: one.options for step, one in before.items()} == {
        step: after[step].options for step in before
    }
    assert len(after) > len(before)


def test_rounds_have_prompts_of_their_own_of_other_data() -> None:
    made = plan("llama-8b", "stage2.prompts=100")
    drawn = [flags(made, f"samples/{where}") for where in ("round1", "round2/lambda4")]
    assert [(one["skip"], one["limit"]) for one in drawn] == [(0, 100), (100, 100)]
    trained, fresh = flags(made, "data/plain"), flags(made, "prompts/round2")
    assert (fresh["skip"], fresh["limit"]) == (trained["limit"], 400)  # behind those of stage 1
    results = [str(made.steps[f"prompts/round{number}"].result) for number in (1, 2)]
    assert [one["prompts"][0] for one in drawn] == results
    with pytest.raises(InvalidRequestError, match="limit"):
        plan("llama-8b", "data.source.limit=")


def test_a_model_learns_from_its_own_answers_and_ships_as_an_adapter() -> None:
    made = plan("pasta-smol", "base='a/base'", "stage2.quality_weights=[4]")
    prompts, fresh = flags(made, "data/prompts"), flags(made, "prompts/round2")
    assert (fresh["skip"], fresh["count"]) == (prompts["count"], 800)
    assert flags(made, "data/plain")["backend"] == "local:a/base"
    assert flags(made, "data/likelihood")["model"] == "a/base"
    for judged in ("scores/round1", "evaluation/stage1/baseline", "evaluation/round2/lambda4"):
        assert flags(made, judged)["judge_model"] == "a/base"
    before = [flags(made, f"round{number}/lambda4")["model"] for number in (1, 2)]
    assert before == [f"{OUT}/stage1/likelihood/adapter", f"{OUT}/round1/lambda4/adapter"]
    shipped = flags(made, "shipped/round2/lambda4")
    assert shipped["adapter"] == f"{OUT}/round2/lambda4/adapter"
    assert shipped["base"] == shipped["base_name"] == "a/base"
    assert "shipped/stage1/baseline" not in made.steps
    path = {step.name for step in made.needed(["shipped/round1/lambda4"])}
    assert not {name for name in path if name.startswith("evaluation")}


def test_variants_of_one_annotator_have_data_of_their_own() -> None:
    with pytest.raises(InvalidRequestError, match="data/likelihood"):
        plan("pasta-smol", "stage1.variants.other.annotator='likelihood'")
    made = plan("pasta-smol", "stage1.variants.other={annotator='likelihood', annotate={tau=1.0}}")
    assert flags(made, "data/other")["tau"] != flags(made, "data/likelihood")["tau"]


def test_an_adapter_of_another_model_than_the_base_is_not_shipped() -> None:
    made = plan("pasta-smol", "stage1.train.lora_rank=0", "stage2.train.lora_rank=8")
    assert made.steps["round1/lambda4"].adapter
    assert not [name for name in made.steps if name.startswith("shipped")]


def test_a_key_is_taken_out_where_its_table_is_not_there_either(tmp_path: Path) -> None:
    recipe = read_recipe(recipe_file(tmp_path, SMALL), ["stage1.train.chat_template="])
    assert recipe.stage1.train == {}


def test_another_base_is_one_line() -> None:
    made = plan("pasta-smol", "base='other'")
    words = [word for step in made.steps.values() for word in as_arguments(step.options)]
    assert not [word for word in words if "SmolLM2" in word]
    judges = flags(plan("pasta-smol", "stage2.score.judge_model='large'"), "scores/round1")
    assert judges["judge_model"] == "large"


def test_what_another_stage_starts_from_is_float32() -> None:
    made = plan("pasta-tiny")
    dtypes = [
        flags(made, name).get("export_dtype") for name in ("stage1/noisy", "round1/lambda4", "round2/lambda4")
    ]
    assert dtypes == [None, None, None]
    assert TrainerSettings.model_fields["export_dtype"].default == "float32"


def test_stage_2_leaves_out_what_stage_1_has_seen_and_keeps_plain_answers_of_its_own() -> None:
    for name, annotated, keeps in (("pasta-tiny", "data/noisy", True), ("llama-8b", "data/endpoint", False)):
        drawn = flags(plan(name), "samples/round1")
        seen = plan(name).steps[annotated].result
        assert (drawn["unseen"], drawn["own_plain"]) == ([str(seen)], keeps)


def test_only_what_one_model_needs() -> None:
    made = plan("pasta-tiny")
    path = [step.name for step in made.needed(["evaluation/round2/lambda4"])]
    assert path == [
        *("base", "data/noisy", "stage1/baseline", "stage1/noisy", "evaluation/stage1/baseline"),
        *("prompts/round1", "samples/round1", "scores/round1", "round1/lambda4"),
        *("prompts/round2", "samples/round2/lambda4", "scores/round2/lambda4", "round2/lambda4"),
        "evaluation/round2/lambda4",
    ]
    with pytest.raises(InvalidRequestError, match="lambda4"):
        made.needed(["lambda4"])


def test_flags_as_a_command_line() -> None:
    given = {"lr": 1e-5, "weight": math.inf, "recompute": True, "drop_long": False, "against": ["a", "b"]}
    words = "--lr 1e-05 --weight inf --recompute --no-drop-long --against a --against b"
    assert as_arguments(given) == words.split()
    made = plan("pasta-tiny", "stage1.train.template_kwargs={a = false}")
    assert '--template-kwargs={"a": false}' in "=".join(as_arguments(flags(made, "stage1/noisy")))


def test_processes_train_behind_torchrun() -> None:
    made = plan("llama-8b")
    trained = {step.name for step in made.steps.values() if "torch.distributed.run" in step.command()}
    assert trained == {step.name for step in made.models}
    assert made.models[0].processes == 8


def test_a_dry_run_shows_every_command_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["llama-8b", "--out", str(tmp_path / "run"), "--dry-run"])
    assert not left.value.code
    shown = capsys.readouterr().out.splitlines()
    made = Plan(read_recipe(find_recipe("llama-8b")), tmp_path / "run").steps.values()
    assert shown == [text for one in made for text in (f"# {one.name}", shlex.join(one.command()))]
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_does_not_fit_ends_the_command_with_the_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match="nowhere"):
        main(["nowhere", "--out", str(tmp_path)])
