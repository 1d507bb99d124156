"""What a rank writes into its page. Shared by `Rank` and its sections; standard library only."""

from __future__ import annotations

from _thread import allocate_lock, get_ident, get_native_id
from time import monotonic_ns

from nvrx_async.ranklink import page as layout
from nvrx_async.ranklink.page import NS, T_COUNT, T_GAP, T_IDENT, T_LAST, T_NATIVE, T_OPEN

_FEW = 2


class Reports:
    """The words of a page, and which of them are this thread's and this section's.

    `slots`: first word of each thread's slot; `names`: numbers of section names.
    """

    def __init__(self, words: memoryview) -> None:
        self.words = words
        self.slots: dict[int, int] = {}
        self.names: dict[str, int] = {}
        self.free_slots: list[int] = []
        self.free_sections: list[int] = []
        self.forget()
        self._go_on()

    def heartbeat(self) -> None:
        """Say that the calling thread gets on. Speaks for this thread only."""
        words, now = self.words, monotonic_ns()
        slot = self.slots.get(get_ident()) or self.new_slot()
        last = words[slot + T_LAST]
        # The first two reports frame the first step, which is always the longest.
        if now - last > words[slot + T_GAP] and words[slot + T_COUNT] >= _FEW and words[slot + T_OPEN] == 0:
            words[slot + T_GAP] = now - last
        words[slot + T_LAST] = now
        words[slot + T_COUNT] += 1

    def forget(self) -> None:
        """All places are free again. A forked child makes a lock of its own: its parent's may be held."""
        self.places = allocate_lock()
        self.slots.clear()
        self.names.clear()
        self.free_slots = [
            layout.THREADS + i * layout.THREAD_WORDS for i in reversed(range(layout.THREAD_SLOTS))
        ]
        self.free_sections = [
            layout.SECTIONS + i * layout.SECTION_WORDS for i in reversed(range(layout.SECTION_SLOTS))
        ]

    def _go_on(self) -> None:
        """After an earlier connection of this process: its names keep their numbers, nothing of it is open."""
        words = self.words
        for index in range(layout.NAME_SLOTS):
            at = layout.NAMES + index * layout.NAME_WORDS + layout.N_TEXT
            if not words[at]:
                break
            raw = bytes(memoryview(words[at : at + layout.NAME_BYTES // 8]).cast("B"))
            self.names[raw.rstrip(b"\0").decode("utf-8", "replace")] = index
        for at in self.free_sections:
            words[at + layout.S_NAME] = words[at + layout.S_SINCE] = 0
        for at in self.free_slots:
            words[at + T_OPEN] = 0

    def new_slot(self) -> int:
        """A slot for the calling thread; the last one is shared by all that come too late for their own."""
        with self.places:
            slot = self.free_slots.pop() if len(self.free_slots) > 1 else self.free_slots[0]
        ident = get_ident()
        words = self.words
        words[slot + T_NATIVE] = get_native_id()
        words[slot + T_LAST] = monotonic_ns()
        words[slot + T_IDENT] = ident
        self.slots[ident] = slot
        return slot

    def name_index(self, name: str, limit_s: float | None) -> int:
        """Number of a section name; names beyond the table share its last place."""
        index = self.names.get(name)
        if index is None:
            index = self._new_name(name)
        if limit_s is not None:
            self.words[layout.NAMES + index * layout.NAME_WORDS + layout.N_LIMIT] = round(limit_s * NS)
        return index

    def _new_name(self, name: str) -> int:
        with self.places:
            index = self.names.setdefault(name, min(len(self.names), layout.NAME_SLOTS - 1))
        at = layout.NAMES + index * layout.NAME_WORDS
        text = (name or "(unnamed)") if index < layout.NAME_SLOTS - 1 else "(other sections)"
        raw = text.encode()[: layout.NAME_BYTES].ljust(layout.NAME_BYTES, b"\0")
        for i, word in enumerate(memoryview(raw).cast("q")):
            self.words[at + layout.N_TEXT + i] = word
        return index


def private_words() -> memoryview:
    """Memory that nobody else sees: every call works on it and tells nobody."""
    return memoryview(bytearray(layout.SIZE_BYTES)).cast("q")
