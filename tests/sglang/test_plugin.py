"""The plug-in for SGLang, on and off; a client that learns of it, and the request of a fork."""

from __future__ import annotations

import sys
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

from pasta_async import DecodeRequest, Sampling
from pasta_async_sglang import ON, STATE, TESTED, VARIABLE, register
from tests.helpers.odd_server import ABOUT, OddServer, backend, event, good, pieces_of, sse, stream

SCHEDULER = "sglang.srt.managers.scheduler"


# The client -------------------------------------------------------------------------------------------------


def server_that_says(*states: str | None) -> OddServer:
    """A server of so many schedulers, each of which tells this of its plug-in."""
    reported = [{} if state is None else {STATE: state} for state in states]
    return OddServer({"/server_info": ABOUT | {"internal_states": reported}})


async def ids_sent(server: OddServer, answer: str = "a") -> tuple[str, str]:
    """The request ids of a main thread, and of a fork of it, while it runs, in the answer named."""
    engine = backend(server)
    running = DecodeRequest("a", 0, (11, 12), 50, Sampling())
    server.decoding = [stream([sse([event([107])])]), good()]
    async with aclosing(engine.decode(running)) as pieces:
        await anext(pieces)
        await pieces_of(engine, answer=answer, thread=1)
    main, fork = [body["rid"] for body in server.sent("/generate")]
    return main, fork


async def test_a_fork_names_its_running_parent_where_the_server_can_use_that() -> None:
    main, fork = await ids_sent(server_that_says(ON, ON))
    assert fork.endswith(f":{main}") and not fork.startswith(main)
    main, fork = await ids_sent(server_that_says(ON), answer="b")
    assert ":" not in fork
    for states in ((), (None,), (ON, None), (ON, "off")):
        main, fork = await ids_sent(server_that_says(*states))
        assert ":" not in fork


@pytest.mark.parametrize(
    ("state", "notes"), [(None, 0), (ON, 0), ("this SGLang has no tree", 1)], ids=["none", "on", "off"]
)
async def test_an_answer_notes_a_plug_in_that_is_off(state: str | None, notes: int) -> None:
    model = await backend(server_that_says(state)).connect()
    assert len(model.notes) == notes
    assert all(str(state) in note for note in model.notes)


# What it is registered for ----------------------------------------------------------------------------------


class Registry:
    """Stands for SGLang's registry of hooks."""

    def __init__(self) -> None:
        self.hooks: dict[str, Any] = {}

    def register(self, target: str, hook: Any, hook_type: Any) -> None:
        self.hooks[target.rsplit(".", 1)[1]] = hook


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The registry in the scheduler's process of an SGLang that is known, the plug-in switched on."""
    stand_in = Registry()
    hooks = SimpleNamespace(HookRegistry=stand_in, HookType=SimpleNamespace(AFTER=1, BEFORE=2))
    fakes = {
        "sglang": SimpleNamespace(__version__=TESTED[-1]),
        SCHEDULER: SimpleNamespace(),
        "sglang.srt.plugins.hook_registry": hooks,
    }
    for name, fake in fakes.items():
        monkeypatch.setitem(sys.modules, name, fake)
    monkeypatch.setenv(VARIABLE, "1")
    return stand_in


def reported_state(registry: Registry, scheduler: Any) -> Any:
    reply = SimpleNamespace(internal_state={})
    registry.hooks["get_internal_state"](reply, scheduler, None)
    return reply.internal_state[STATE]


# In a scheduler ---------------------------------------------------------------------------------------------


class UnifiedRadixCache:
    """Stands for SGLang's tree; it fails when something is published."""

    disable = False
    tree_components = ("full",)
    cache_controller = linker = None
    pp_size = 1

    def checkpoint(self, request: Any, up_to: int) -> None:
        raise AssertionError("a broken tree")


def suitable(**changes: Any) -> Any:
    """A scheduler in which one request, `parent`, has decoded two tokens."""
    kv = SimpleNamespace(holds_kv=True, kv_committed_len=4)
    running = SimpleNamespace(
        **{"rid": "parent", "origin_input_ids": [1, 2, 3], "output_ids": [4, 5], "kv": kv},
        **{"session": None, "beam_group": None, "is_retracted": False, "skip_radix_cache_insert": False},
        **{"finished": lambda: False, "refresh_fill_ids": lambda: None},
    )
    parts = {
        **{"running_batch": None, "last_batch": SimpleNamespace(reqs=[running]), "dllm_config": None},
        **{"tree_cache": UnifiedRadixCache(), "spec_algorithm": SimpleNamespace(is_none=lambda: True)},
        **{"disaggregation_mode": SimpleNamespace(value="null"), "enable_hisparse": False},
    }
    return SimpleNamespace(**{**parts, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"tree_cache": SimpleNamespace()},
        {"spec_algorithm": SimpleNamespace(is_none=lambda: False)},
        {"disaggregation_mode": SimpleNamespace(value="decode")},
        {"dllm_config": 1},
        {"enable_hisparse": True},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_server_of_another_kind_has_it_off(registry: Registry, changes: dict[str, Any]) -> None:
    register()
    assert reported_state(registry, suitable(**changes)) != ON


def test_what_fails_switches_it_off_and_the_request_goes_on(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    register()
    before = registry.hooks["handle_generate_request"]
    for rid in (None, "fork", "fork:nobody"):
        before(suitable(), SimpleNamespace(rid=rid), mm_input_error=None)
    assert reported_state(registry, suitable()) == ON
    for _ in range(2):
        before(suitable(), SimpleNamespace(rid="fork:parent"), mm_input_error=None)
    assert "a broken tree" in reported_state(registry, suitable())
    assert len(caplog.records) == 1
