"""Filling a plan: a task for each hole, which begins as soon as the holes that it sees are written.

`PlanRun` does the work, and a `FillStream` hands its events to a reader.

The contract on cancellation is that of answers: when `PlanRun.run` returns or raises, no task of it is left,
and every request that it opened is over or was aborted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Generic

from pasta_async.errors import (
    BackendError,
    BackendProtocolError,
    PastaError,
    PromptTooLongError,
    ThreadFailedError,
)
from pasta_async.events import Emit
from pasta_async.grammar import Grammar
from pasta_async.interpreter.runner import Prepared, limited_group, retry_delay
from pasta_async.interpreter.state import thread_seed
from pasta_async.lang.document import Document, Text
from pasta_async.lang.views import Segment
from pasta_async.plans.events import (
    FieldDelta,
    FieldDone,
    FieldStarted,
    Filled,
    FillEvent,
    T,
)
from pasta_async.plans.parts import HolePart, Layout, item_path, value_so_far
from pasta_async.plans.plan import Hole, Plan
from pasta_async.protocol import DecodeRequest, Piece
from pasta_async.results import FinishReason, Generation, Usage
from pasta_async.streaming import ResultStream
from pasta_async.tag_tokens import TagGrammar
from pasta_async.tokenizer import Detokenizer, run_encoding


class PlanRun:
    """Fills one plan. `emit` receives events; it may wait, and then so does the hole that emits them."""

    def __init__(self, prepared: Prepared, plan: Plan, emit: Emit[FillEvent] | None) -> None:
        model = prepared.model
        self._prepared = prepared
        self._plan = plan
        self._model = model
        self._emit = emit
        self._layout = Layout(plan, model.grammars)
        self._parts: dict[str, HolePart] = {}  # by path
        self._finish_reason: FinishReason = "abort"  # until it ends in another way
        self._written = {hole.name: asyncio.Event() for hole in plan.holes if hole.list_of is None}
        # For each context that parts share: set once a part's request has computed it.
        self._computed: dict[str, asyncio.Event] = {}

    async def run(self) -> Filled[dict[str, Any]]:
        """Fill the plan; the value is plain JSON.

        Raises:
            ThreadFailedError: A hole could not be written.
            GenerationTimeoutError: The time was up.

        Cancelling it ends every hole, aborts every open request and waits until that is done.
        """
        try:
            async with limited_group(self._prepared, "the plan") as self._group:
                top = [hole for hole in self._plan.holes if hole.list_of is None]
                await asyncio.wait([self._group.create_task(self._top_hole(hole)) for hole in top])
        except PastaError as error:
            self._finish_reason = "error"
            error.partial = self.partial()
            raise
        return self._filled()

    def partial(self) -> Generation:
        """The answer as far as it is written: its text ends at the first gap."""
        text = self.document()
        # Tokens on the longest chain that ends with each part; the parts that it sees come first.
        chains: dict[str, int] = {}
        for part in sorted(self._parts.values(), key=lambda part: len(self._plan.seen[part.hole.name])):
            seen = [chains[other.path] for other in self._seen_by(part)]
            chains[part.path] = part.tokens - part.discarded + max(seen, default=0)
        records = tuple(part.record() for part in self._parts.values())
        tokens = len(self._model.tokenizer.encode(text)) if text else 0
        document = Document((Text(text),))
        written = sum(part.done.is_set() for part in self._parts.values())
        if self._plan.is_tagged and written == len(self._plan.holes):
            document = self._layout.tagged_document(self._parts.values())
        now = self._prepared.now()
        return Generation(
            text=text,
            document=document,
            threads=records,
            usage=Usage.of(records, len(self._prepared.prompt)),
            critical_path=max(chains.values(), default=0),
            text_tokens=tokens,
            finish_reason=self._finish_reason,
            elapsed=now,
            notes=self._prepared.notes,
        )

    def document(self) -> str:
        """The text in order, up to the first part that is not written yet."""
        return self._layout.document(self._parts)

    def snapshot(self) -> dict[str, Any]:
        """The values so far, by path. A string may be a beginning; fields that are not begun are left out.

        A list whose items have threads is its outline until they are written.
        """
        values: dict[str, Any] = {}
        for part in self._parts.values():
            for key, text in part.values.items():
                values[part.key_path(key)] = text if self._plan.is_text else json.loads(text)
            if part.hole.name in self._plan.lists:
                text, is_whole = self._layout.value(part.hole.name, self._parts)
                if is_whole:
                    values[part.hole.name] = json.loads(text)
            if self._plan.is_text and part.output:
                values.setdefault(part.path, part.output)
            for key, raw in part.raw_values().items():
                path = part.key_path(key)
                if path not in values and raw.startswith('"'):
                    values[path] = value_so_far(raw)
        return values

    def _filled(self) -> Filled[dict[str, Any]]:
        text = self.document()
        if self._plan.is_text:
            value = {part.hole.name: part.values[part.hole.name] for part in self._parts.values()}
        else:
            value = json.loads(text)
        truncated = [part.path for part in self._parts.values() if part.was_truncated]
        self._finish_reason = "length" if truncated else "stop"
        return Filled(value=value, text=text, truncated=tuple(truncated), generation=self.partial())

    # Order ------------------------------------------------------------------------------------------------

    def _part(self, hole: Hole, item: int | None = None) -> HolePart:
        part = HolePart(
            number=len(self._parts) + 1,  # 0 is main, which a plan does not have
            hole=hole,
            path=item_path(hole, item),
            item=item,
            start=self._layout.start(hole),
            opened=self._prepared.now(),
        )
        self._parts[part.path] = part
        return part

    async def _top_hole(self, hole: Hole) -> None:
        """Write a hole of the answer once the holes that it sees are written; for a list its items, too."""
        part = self._part(hole)
        for name in hole.after:
            await self._written[name].wait()
        await self._write(part)
        if hole.name in self._plan.lists:
            await self._items(part)
        self._written[hole.name].set()

    async def _items(self, outline: HolePart) -> None:
        """Write the holes that each item of a list has."""
        key = outline.hole.name
        holes = [hole for hole in self._plan.holes if hole.list_of == key]
        items = json.loads(outline.values[key])
        tasks: list[asyncio.Task[None]] = []
        for number in range(len(items)):
            parts = {hole.name: self._part(hole, number) for hole in holes}
            tasks += [self._group.create_task(self._item_hole(part, parts)) for part in parts.values()]
        if tasks:  # a list may have no items
            await asyncio.wait(tasks)

    async def _item_hole(self, part: HolePart, parts: dict[str, HolePart]) -> None:
        for name in part.hole.after:
            if name in parts:
                await parts[name].done.wait()
        await self._write(part)

    def _seen_by(self, part: HolePart) -> list[HolePart]:
        """The parts that a part sees, in the order of the document.

        They are all items of other lists, but of its own list only its own item's.
        """
        seen = self._plan.seen[part.hole.name]
        return [
            other
            for other in self._parts.values()
            if other.hole.name in seen
            and (
                other.hole.list_of is None
                or other.hole.list_of != part.hole.list_of
                or other.item == part.item
            )
        ]

    # Requests ---------------------------------------------------------------------------------------------

    async def _write(self, part: HolePart) -> None:
        """Decode a part, and send its request again after a failure that may pass."""
        shared, context = self._layout.context(part, self._seen_by(part))
        request = await self._request(part, context)
        failures = 0
        # One part computes a context; the others begin when it is in the prefix cache.
        is_leader = shared not in self._computed
        computed = self._computed.setdefault(shared, asyncio.Event())
        if self._plan.is_tagged:  # a hole's context begins with that of the hole before: the last one has all
            *_, last = (hole for hole in self._plan.holes if hole.after == part.hole.after)
            is_leader = part.hole is last
        try:
            if not is_leader:
                await computed.wait()
            while True:
                try:
                    async with self._prepared.decoding(part.number):
                        await self._hand_on(part, FieldStarted(part.path, part.number, self._prepared.now()))
                        await self._exchange(part, request, computed)
                    break
                except BackendError as error:
                    # What a reader has cannot be taken back.
                    is_key = part.hole.key is not None
                    has_text = any(part.raw_values().values()) if is_key else part.output
                    is_shown = self._emit and has_text
                    again = error.retryable and failures < self._prepared.start.limits.retries
                    if is_shown or not again or not self._has_tokens_to_retry(part):
                        message = f"{part.path} failed: {error}"
                        raise ThreadFailedError(message, thread=part.number) from error
                    part.discarded = part.tokens
                    part.output = ""
                    part.held = ""
                    part.values = {}
                    part.was_truncated = False
                    wait = self._prepared.clock.sleep(retry_delay(failures, error))
                    await self._prepared.without_slot(part.number, wait)
                    failures += 1
        finally:
            computed.set()  # also after a failure: the others must not wait for ever
        part.done.set()
        for key, raw in part.values.items():
            value = raw if part.hole.schema is None else json.loads(raw)
            await self._hand_on(part, FieldDone(part.key_path(key), value))

    def _has_tokens_to_retry(self, failed: HolePart) -> bool:
        """True if `Limits.total_tokens` lets a part begin anew, whatever the parts that are not done take."""
        total = self._prepared.start.limits.total_tokens
        most = self._plan.tokens + failed.tokens
        for part in self._parts.values():
            if part.done.is_set():
                most += part.tokens - part.hole.tokens
            elif part is not failed:
                most += part.discarded
        return total is None or most <= total

    async def _request(self, part: HolePart, context: Sequence[Segment]) -> DecodeRequest:
        """The request that decodes a part.

        Raises:
            PromptTooLongError: Its context leaves no room for a token.
        """
        start = self._prepared.start
        tokenizer = self._model.tokenizer
        tags = self._prepared.tags
        size = sum(len(segment.text) for segment in context)
        ids = (*self._prepared.prompt, *await run_encoding(size, lambda: tokenizer.encode_segments(context)))
        room = self._model.context_length - len(ids)
        if room < 1:
            message = f"{part.path} has a context of {len(ids)} tokens; {self._model.name} takes fewer"
            raise PromptTooLongError(message, limit=self._model.context_length - 1)
        sampling = start.sampling
        if part.hole.schema is not None and sampling.repetition_penalty is None:
            # A penalty makes a model avoid the quotation marks and keys that JSON repeats.
            sampling = sampling.model_copy(update={"repetition_penalty": 1.0})
        return DecodeRequest(
            answer=start.answer,
            thread=part.number,
            ids=ids,
            max_tokens=min(part.hole.tokens, room),
            sampling=sampling,
            seed=thread_seed(sampling.seed, part.path),
            stop_ids=tags.ends_of_chunk if tags else (),
            banned_ids=tags.wrong_in_chunk if tags else self._model.tags or (),
            tag_grammar=tags
            and TagGrammar(tags, self._model.end_ids, self._model.tokenizer.token_bytes, chunk=True),
            grammar=self._layout.grammar(part.hole),
        )

    async def _exchange(self, part: HolePart, request: DecodeRequest, computed: asyncio.Event) -> None:
        """Send a part's request, and take its values from what is decoded."""
        detokenizer = Detokenizer(self._model.tokenizer)
        ends = {*self._model.end_ids, *request.stop_ids}

        async def feed(piece: Piece) -> FinishReason | None:
            computed.set()
            part.receive(piece, self._prepared.now())
            part.tokens += len(piece.ids)
            new = "".join(detokenizer.add(token) for token in piece.ids if token not in ends)
            is_ended = await self._add(part, new)
            finish_reason = "stop" if is_ended else piece.finish_reason
            if finish_reason:
                await self._finish(part, request.grammar, was_cut=finish_reason == "length")
            return finish_reason

        try:
            await self._prepared.exchange(part, request, feed)
        finally:
            part.finish_reason = part.requests[-1].finish_reason or "abort"
            part.ended = self._prepared.now()

    async def _add(self, part: HolePart, new: str) -> bool:
        """Add decoded text to a part, and hand it on; True if that ends it."""
        if part.hole.schema is not None:
            part.output += new
            ended = self._layout.ended_object(part.hole, part.output) if "," in new else None
            part.output = ended or part.output
            if self._emit is None:  # no reader: the fields are read once, at the end
                return ended is not None
            # A delta for each field that the new text makes longer.
            for key, raw in part.raw_values().items():
                if delta := value_so_far(raw)[part.shown[key] :]:
                    part.shown[key] += len(delta)
                    await self._hand_on(part, FieldDelta(part.key_path(key), delta))
            return ended is not None
        delta, is_ended = part.free_text(new)
        if delta:
            await self._hand_on(part, FieldDelta(part.path, delta))
        return is_ended

    async def _finish(self, part: HolePart, grammar: Grammar | None, *, was_cut: bool) -> None:
        """Take a part's values from its output, which is closed first if a limit cut it off."""
        if grammar is None:
            rest, _ = part.free_text("", is_whole=True)
            if rest:
                await self._hand_on(part, FieldDelta(part.path, rest))
            part.was_truncated = was_cut
            part.values = {part.hole.name: part.output}
            return
        if was_cut and (missing := grammar.closing(part.output)):
            part.output += missing
            part.was_truncated = True
        elif not grammar.accepts(part.output):
            raise BackendProtocolError(f"the backend did not keep to the grammar: {part.output[:80]!r}")
        values = part.raw_values()
        try:
            for raw in values.values():
                json.loads(raw)
        # Nested too deeply, by a schema that refers to itself, or an integer of more than 4,300 digits.
        except (ValueError, RecursionError) as error:
            raise BackendError(f"Python cannot read the output: {error}") from error
        part.values = values

    async def _hand_on(self, part: HolePart, event: FillEvent) -> None:
        """Hand an event on; a part that waits for its reader holds no slot."""
        if self._emit and (wait := self._emit([event])):
            await self._prepared.without_slot(part.number, wait)


class FillStream(ResultStream[FillEvent, Filled[T]], Generic[T]):
    """The events of one plan. Made by `Client.fill_stream`."""

    @property
    def _plan_run(self) -> PlanRun | None:
        """The run; None until the prompt is encoded."""
        run = self._observation.run
        return run if isinstance(run, PlanRun) else None

    def snapshot(self) -> dict[str, Any]:
        """The values so far, by path. A string that is being written has its beginning here.

        Fields that are not begun are left out, which tells them from null.
        """
        return self._plan_run.snapshot() if self._plan_run else {}

    @property
    def text(self) -> str:
        """The text in order, up to the first part that is not written yet: a beginning of the final text."""
        return self._plan_run.document() if self._plan_run else ""

    async def text_deltas(self) -> AsyncIterator[str]:
        """The text in order, piece by piece: the pieces so far are always a beginning of the final text."""
        written = 0
        async for _ in self:
            if delta := self.text[written:]:
                written += len(delta)
                yield delta
