"""The static analysis of plans: the bounds of a plan, and whether it can be kept, before anything runs.

The idea is Siren's (Cheng, Atkinson et al., arXiv 2408.11283). Where the verdict is `yes`, every run that the
backend does not fail ends with a valid object within the bounds. Validators in Python are outside of that. So
is the context that it takes to close a value that was cut off, which is long only for extreme schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel

from pasta_async.errors import InvalidRequestError
from pasta_async.grammar import Grammar, has_guidance
from pasta_async.plans.plan import Hole, Plan
from pasta_async.plans.schema import Schema

PlanVerdict = Literal["yes", "no"]

_TAG_TOKENS = 16
"""Most tokens around a hole's name in a promise and its chunk: the tags, the estimate, a sync."""

_REASONS = ("reason", "reasoning", "rationale", "thought", "thoughts", "explanation", "analysis")


class PlanCode(StrEnum):
    """Stable names of the findings about a plan; docs/plans.md lists them."""

    CYCLE = "cycle"
    UNKNOWN_HOLE = "unknown-hole"
    SCHEMA_UNSUPPORTED = "schema-unsupported"
    SCHEMA_EMPTY = "schema-empty"
    UNBOUNDED = "unbounded"
    BUDGET = "budget"
    CONTEXT = "context"
    WIDTH = "width"
    REASON_LAST = "reason-last"
    NO_EFFECT = "no-effect"


class Finding(BaseModel, frozen=True):
    """One finding, with the hole that it is about."""

    code: PlanCode
    verdict: PlanVerdict
    """`no`: the plan cannot be run. `yes`: advice."""
    hole: str
    """Empty for the plan as a whole."""
    message: str

    def __str__(self) -> str:
        return f"{self.hole or 'plan'}: {self.code}: {self.message}"


class Bounds(BaseModel, frozen=True):
    """The most that a run takes, in tokens."""

    critical_path: int
    """Tokens on the longest chain of holes that wait for one another."""
    tokens: int
    """Tokens of all holes together."""
    width: int
    """Holes that may be written at the same time."""
    joined: int
    """Tokens that all holes together read beside the prompt, because they see other holes."""
    context: int
    """Tokens of the longest context and the output behind it, without the prompt."""


class PlanReport(BaseModel, frozen=True):
    """The result of checking a plan; `str` shows it as text, in a notebook it is a diagram."""

    verdict: PlanVerdict
    findings: tuple[Finding, ...]
    bounds: Bounds | None
    """None where holes wait for one another in a circle."""
    sees: dict[str, tuple[str, ...]]
    """The holes that each hole sees, in the order of the document."""
    tokens: dict[str, int]
    """The largest number of tokens that each hole may have."""

    def __str__(self) -> str:
        lines = [f"verdict: {self.verdict}"]
        if bounds := self.bounds:
            lines.append(
                f"at most {bounds.tokens} tokens, {bounds.critical_path} one after another, "
                f"{bounds.width} fields at once, {bounds.joined} tokens read again, since fields see others"
            )
        lines += [f"  {finding}" for finding in self.findings]
        width = max(map(len, self.sees), default=0)
        for name, seen in self.sees.items():
            lines.append(
                f"  {name:{width}}  {self.tokens[name]:5} tokens  sees {', '.join(seen) or 'the prompt'}"
            )
        return "\n".join(lines)

    def mermaid(self) -> str:
        """The graph as a Mermaid diagram, each edge from a hole to one that waits for it."""
        number = {name: f"h{i}" for i, name in enumerate(self.sees)}
        nodes = [f'  {number[name]}["{name}<br/>{self.tokens[name]} tokens"]' for name in self.sees]
        edges: list[str] = []
        for name, seen in self.sees.items():
            # Leave out an edge that others imply: where a sees b and b sees c, c -> a is not drawn.
            indirect = {far for near in seen for far in self.sees[near]}
            edges += [f"  {number[near]} --> {number[name]}" for near in seen if near not in indirect]
        return "\n".join(["flowchart LR", *nodes, *edges])

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """The text and the diagram, for a notebook."""
        return {"text/plain": str(self), "text/vnd.mermaid": self.mermaid()}


class InvalidPlanError(InvalidRequestError):
    """A plan that `check` says no to; nothing was sent."""

    def __init__(self, report: PlanReport) -> None:
        reasons = "; ".join(str(finding) for finding in report.findings if finding.verdict == "no")
        super().__init__(f"the plan cannot be run: {reasons}")
        self.report = report
        """The report of `check`."""


def check_plan(
    plan: Plan,
    *,
    max_tokens: int | None = None,
    max_threads: int | None = None,
    context: int | None = None,
    grammars: frozenset[str] | None = None,
    schema_refusal: Callable[[Schema], str | None] | None = None,
) -> PlanReport:
    """Check a plan without running it.

    Args:
        plan: The plan.
        max_tokens: Tokens that all holes may have together.
        max_threads: Holes that may be written at once; more wait for one another.
        context: Tokens that the model's context has for the plan, the prompt taken off.
        grammars: Kinds of grammars that the backend takes; None: it is not known.
        schema_refusal: `Model.schema_refusal` of the backend.
    """
    findings = [*_names(plan), *_schemas(plan, grammars, schema_refusal), *_advice(plan)]
    bounds = None
    if not any(finding.code == PlanCode.CYCLE for finding in findings):
        bounds = _bounds(plan)
        findings += _limits(plan, bounds, max_tokens, max_threads, context)
    verdict: PlanVerdict = "no" if any(finding.verdict == "no" for finding in findings) else "yes"
    names = [hole.name for hole in plan.holes]
    return PlanReport(
        verdict=verdict,
        findings=tuple(findings),
        bounds=bounds,
        sees={name: tuple(other for other in names if other in plan.seen[name]) for name in names},
        tokens={hole.name: hole.tokens for hole in plan.holes},
    )


def _names(plan: Plan) -> Iterator[Finding]:
    """Findings about names that no field has, and about circles."""
    for hole in plan.holes:
        for name in hole.unknown:
            message = f"After({name!r}) names no field here"
            yield Finding(code=PlanCode.UNKNOWN_HOLE, verdict="no", hole=hole.name, message=message)
    circle = [name for name, seen in plan.seen.items() if name in seen]
    if circle:
        message = f"{', '.join(circle)} wait for one another"
        yield Finding(code=PlanCode.CYCLE, verdict="no", hole=circle[0], message=message)


def _schemas(
    plan: Plan, grammars: frozenset[str] | None, refusal: Callable[[Schema], str | None] | None
) -> Iterator[Finding]:
    """Findings about schemas that no value meets, or that cannot be kept while decoding."""
    constrained = [hole for hole in plan.holes if hole.schema is not None]
    if constrained and grammars is not None and not grammars:
        message = "the backend cannot decode by a grammar"
        yield Finding(code=PlanCode.SCHEMA_UNSUPPORTED, verdict="no", hole="", message=message)
    if constrained and not has_guidance():
        message = "typed fields need llguidance: pip install 'pasta_async[plans]'"
        yield Finding(code=PlanCode.SCHEMA_UNSUPPORTED, verdict="no", hole="", message=message)
        return
    for hole in constrained:
        for problem in Grammar.of_schema(hole.value_schema).problems():
            empty = "unsatisfiable" in problem.lower()
            code = PlanCode.SCHEMA_EMPTY if empty else PlanCode.SCHEMA_UNSUPPORTED
            yield Finding(code=code, verdict="no", hole=hole.name, message=problem)
        if refusal and (problem := refusal(hole.value_schema)):
            yield Finding(code=PlanCode.SCHEMA_UNSUPPORTED, verdict="no", hole=hole.name, message=problem)


def _advice(plan: Plan) -> Iterator[Finding]:
    """Advice: findings about a plan that can be run, but perhaps not as it is meant."""
    for hole in plan.holes:
        if not hole.is_bounded:
            message = (
                f"it may be longer than {hole.tokens} tokens, where it is cut off; Tokens(n) sets a limit"
            )
            yield Finding(code=PlanCode.UNBOUNDED, verdict="yes", hole=hole.name, message=message)
    for key, items in plan.lists.items():
        if not items.is_bounded:
            message = (
                f"nothing bounds the list, so it ends after {items.most} items; max_length says how many"
            )
            yield Finding(code=PlanCode.UNBOUNDED, verdict="yes", hole=key, message=message)
    for path in plan.unused:
        message = "its annotations have no effect: it is within a field, or in the outline of a list"
        yield Finding(code=PlanCode.NO_EFFECT, verdict="yes", hole=path, message=message)
    waited_for = {name for seen in plan.seen.values() for name in seen}
    for hole in plan.holes:
        key = hole.key or hole.name
        if key.lower() in _REASONS and hole.name not in waited_for and len(plan.holes) > 1:
            message = f"no field comes after {key!r}, so the reason has no effect on the answer"
            yield Finding(code=PlanCode.REASON_LAST, verdict="yes", hole=hole.name, message=message)


def _limits(
    plan: Plan, bounds: Bounds, max_tokens: int | None, max_threads: int | None, context: int | None
) -> Iterator[Finding]:
    """Findings about bounds above the limits."""
    if max_tokens is not None and bounds.tokens > max_tokens:
        message = f"the fields may have {bounds.tokens} tokens together, which is more than {max_tokens}"
        yield Finding(code=PlanCode.BUDGET, verdict="no", hole="", message=message)
    if context is not None and bounds.context > context:
        message = f"a field may need {bounds.context} tokens of context behind the prompt; {context} are left"
        yield Finding(code=PlanCode.CONTEXT, verdict="no", hole="", message=message)
    if max_threads is not None and bounds.width > max_threads:
        message = f"{bounds.width} fields could be written at once; {max_threads} are, and the others wait"
        yield Finding(code=PlanCode.WIDTH, verdict="yes", hole="", message=message)


def _bounds(plan: Plan) -> Bounds:
    copies = plan.copies
    fixed = {hole.name: _fixed_tokens(hole, plan.is_tagged) for hole in plan.holes}
    length: dict[str, int] = {}
    seen_tokens: dict[str, int] = {}
    # A hole sees more holes than any hole that it sees, so those come first in this order.
    ordered = sorted(plan.holes, key=lambda hole: len(plan.seen[hole.name]))
    for index, hole in enumerate(ordered):
        seen = plan.seen[hole.name]
        length[hole.name] = hole.tokens + max((length[name] for name in seen), default=0)
        # A hole of an item sees its own item's part of a hole of its list; other holes see the parts of all.
        counts = {name: 1 if plan.by_name[name].list_of == hole.list_of else copies[name] for name in seen}
        seen_tokens[hole.name] = sum(
            count * (plan.by_name[name].tokens + fixed[name]) for name, count in counts.items()
        )
        if plan.is_tagged:  # the text and the promises of holes in front are seen, even without their chunks
            unseen = [other.name for other in ordered[:index] if other.name not in seen]
            seen_tokens[hole.name] += sum(fixed[name] for name in unseen)
        if hole.list_of:  # the item's part of the outline stands in the context once more
            seen_tokens[hole.name] += plan.by_name[hole.list_of].tokens
    return Bounds(
        critical_path=max(length.values()),
        tokens=plan.tokens,
        width=_width(plan),
        joined=sum(copies[name] * tokens for name, tokens in seen_tokens.items()),
        context=max(seen_tokens[hole.name] + fixed[hole.name] + hole.tokens for hole in plan.holes),
    )


def _fixed_tokens(hole: Hole, is_tagged: bool) -> int:
    """The largest number of tokens of the text around a hole: a token has at least one byte."""
    tags = len(hole.name.encode()) + _TAG_TOKENS if is_tagged else 0
    key = len(hole.key.encode()) + 8 if hole.key else 0
    return tags + len(hole.head.encode()) + key


def _width(plan: Plan) -> int:
    """The most holes that may be written at once: no more than chains of holes that wait for one another.

    A chain counts as often as its hole with the most copies.
    """
    chains: list[list[str]] = []
    for hole in sorted(plan.holes, key=lambda hole: len(plan.seen[hole.name])):
        # The hole goes on with a chain whose last hole it sees, if there is one.
        chain = next((chain for chain in chains if chain[-1] in plan.seen[hole.name]), None)
        if chain is None:
            chains.append([hole.name])
        else:
            chain.append(hole.name)
    return sum(max(plan.copies[name] for name in chain) for chain in chains)
