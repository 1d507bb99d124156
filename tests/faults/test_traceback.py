"""Finding the exception that ended a rank in the text it left."""

import signal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nvrx_async.faults import TAIL_CHARS, last_exception, last_lines, rank_error
from nvrx_async.job.records import PythonError

BLOCK = """Traceback (most recent call last):
  File "/home/user/train.py", line 41, in <module>
    main()
  File "/home/user/train.py", line 12, in main
    raise ValueError("bad shard")
ValueError: bad shard
"""
ERROR = PythonError("ValueError", "bad shard", "/home/user/train.py", 12, "main")
IGNORED = BLOCK.replace("Traceback", "Exception ignored in: <function f at 0x7f>\nTraceback").replace(
    "ValueError", "KeyError"
)
THREAD = "Exception in thread Thread-1 (load):\n" + BLOCK.replace("ValueError", "IndexError")
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/home/user/train.py", line 3, in <module>
  |     anyio.run(main)
  |   File "/opt/venv/lib/python3.11/site-packages/anyio/_core/_eventloop.py", line 74, in run
  |     return async_backend.run(func)
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/user/train.py", line 12, in main
    |     raise ValueError("bad shard")
    | ValueError: bad shard
    +------------------------------------
"""
RICH = """╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /home/user/train.py:41 in <module>                                           │
│                                                                              │
│ ❱ 41 main()                                                                  │
│ /home/user/train.py:12 in main                                               │
│ ❱ 12     raise ValueError("bad shard")                                       │
╰──────────────────────────────────────────────────────────────────────────────╯
ValueError: bad shard
"""


def ranked(text, rank=0):
    return "".join(
        f"[rank{rank}]: {line}" if line.strip() else line for line in text.splitlines(keepends=True)
    )


@pytest.mark.parametrize(
    "text",
    [
        BLOCK,
        ranked(BLOCK),
        "noise\n" + BLOCK,
        "\r 12%|█▏        | 12/100 [00:01<00:08]" + BLOCK,
        BLOCK.replace("\n", "\r\n"),
        BLOCK.replace("ValueError: ", "\x1b[1;35mValueError\x1b[0m: \x1b[3m").replace(
            "shard\n", "shard\x1b[0m\n"
        ),
        THREAD + BLOCK,
        BLOCK + THREAD,
        BLOCK
        + THREAD
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + BLOCK.replace("ValueError", "KeyError"),
        BLOCK + IGNORED,
        IGNORED + BLOCK,
        BLOCK.replace("ValueError", "KeyError")
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + BLOCK,
        BLOCK.replace("ValueError", "KeyError")
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + BLOCK,
        GROUP,
        ranked(GROUP),
        RICH,
        ranked(BLOCK) + "step 12\n[W1130 12:00:00.1 socket.cpp:1] [c10d] bye\n",
        BLOCK[BLOCK.index("  File") :],
        BLOCK.replace('bad shard")\nV', 'bad shard")\n[W1130 12:00:00.1 TCPStore.cpp:138] [c10d] lost\nV'),
    ],
)
def test_finds_the_final_exception(text):
    assert last_exception(text) == ERROR


@pytest.mark.parametrize(
    "text",
    [
        "",
        "step 1\nstep 2: fine\n",
        IGNORED,
        "Traceback (most recent call last):\n",
        "Traceback (most recent call last):\n" + '  File "x.py", line 1, in f\n',
        "python: can't open file '/home/user/train.py': [Errno 2] No such file or directory\n",
        'Current thread 0x00007f (most recent call first):\n  File "/home/user/train.py", line 12 in main\n',
        'Stack (most recent call last):\n  File "/home/user/train.py", line 12, in main\nINFO: hello\n',
    ],
)
def test_finds_nothing_where_nothing_was_raised(text):
    assert last_exception(text) is None


def test_an_exception_of_a_thread_counts_when_there_is_no_other():
    assert last_exception(THREAD).type == "IndexError"


def test_library_frames_are_passed_over_but_for_one_that_is_all_there_is():
    library = BLOCK.replace("line 12, in main", "line 12, in f").replace(
        '"/home/user/train.py", line 12', '"/opt/lib/python3.11/site-packages/lib.py", line 9'
    )

    assert (last_exception(library).file, last_exception(library).line) == ("/home/user/train.py", 41)
    only = library.replace("/home/user/train.py", "/usr/lib/python3.11/runpy.py")
    assert last_exception(only).line == 9


def test_messages_of_several_lines_end_where_logging_begins():
    text = BLOCK.rpartition("bad shard")[0] + "first\n  second\n\nthird\nINFO done\n"

    assert last_exception(text).message == "first\n  second\n\nthird"


def test_what_was_not_prefixed_is_no_part_of_a_prefixed_message():
    assert last_exception(ranked(BLOCK) + "epoch 3 finished\n").message == "bad shard"
    assert last_exception(ranked(BLOCK + "second line\n") + "epoch 3\n").message == "bad shard\nsecond line"


@pytest.mark.parametrize(
    ("text", "exit_code", "number", "found"),
    [
        (BLOCK, 0, None, False),  # it ended well: whatever it logged was dealt with
        (BLOCK, 1, None, True),
        (BLOCK + "step\n" * 30, 1, None, True),  # clean-up at exit
        (BLOCK + "step\n" * 500, 1, None, False),
        (BLOCK + "step\n" * 50, 7, None, False),
        (BLOCK, 7, None, True),
        (BLOCK, None, signal.SIGKILL, True),  # raised, and hung while it exited
        (BLOCK + "step 12\n", None, signal.SIGKILL, False),  # caught, logged, trained on
        (BLOCK + IGNORED, None, signal.SIGKILL, True),
        (ranked(BLOCK) + "step 12\n" * 500, None, signal.SIGKILL, True),  # only sys.excepthook prefixes
        (THREAD + "step 12\n", None, signal.SIGTERM, False),
        (BLOCK + "step 12\n", None, signal.SIGABRT, True),
        (BLOCK + "frame #1: f (0x7f in libc10.so)\n" * 99, None, signal.SIGABRT, True),
        (BLOCK + "step 12\n" * 99, None, signal.SIGABRT, False),
    ],
)
def test_how_a_rank_ended_decides_whether_it_ended_by_its_exception(text, exit_code, number, found):
    assert (rank_error(text, exit_code, number) is not None) is found


def test_a_cpp_exception_that_aborts_is_found():
    text = (
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [PG 1 Rank 1] Process group watchdog thread terminated with exception\n"
        "frame #0: c10::Error::Error + 0x9d (0x7f in libc10.so)\n"
    )

    error = rank_error(text, None, signal.SIGABRT)

    assert error.type == "c10::DistBackendError"
    assert "watchdog" in error.message
    assert rank_error(text, None, signal.SIGKILL) is None


def test_last_lines_are_fit_for_a_screen():
    text = "old\n\n\x1b[31mred\x1b[0m\n" + "y" * 1000 + "\n   \nprogress 1\rprogress 2\n"

    lines = last_lines(text, 3)

    assert (lines[0], lines[2]) == ("red", "progress 2")
    assert len(lines[1]) == 300
    assert last_lines(text, 0) == ()
    assert last_lines("", 5) == ()


GARBAGE = st.text(
    st.one_of(st.characters(codec="utf-8"), st.sampled_from('\n\r\t \x1b[]|+:"#0123456789/')), max_size=300
)
FRAGMENTS = st.sampled_from(
    (
        "Traceback (most recent call last):\n",
        '  File "a.py", line 3, in f\n',
        "    x = 1\n",
        "ValueError: x\n",
        "  + Exception Group Traceback (most recent call last):\n",
        "  | ",
        "    +---\n",
        "[rank3]: ",
        "Exception in thread T:\n",
        "Exception ignored in: y\n",
        "╭─ Traceback (most recent call last) ─╮\n",
        "│ a.py:3 in f │\n",
        "terminate called after throwing an instance of 'E'\n",
        "  what():  z\n",
        "\n",
        "\r",
    )
)
SOUP = st.lists(st.one_of(FRAGMENTS, GARBAGE), max_size=30).map("".join)


@settings(max_examples=150, deadline=None)
@given(text=SOUP, exit_code=st.none() | st.integers(0, 255), number=st.none() | st.integers(1, 64))
@example(text="[rank0]:", exit_code=1, number=None)
def test_any_text_is_read_without_a_failure(text, exit_code, number):
    last_exception(text)
    rank_error(text, exit_code, number)
    assert all(len(line) <= 300 and line.strip() for line in last_lines(text, 5))


PLAIN = st.lists(st.text("abc def.,;()0123456789%=", max_size=60), max_size=40).map("\n".join)


@settings(max_examples=100, deadline=None)
@given(before=SOUP, after=PLAIN, rank=st.integers(0, 9999))
def test_an_uncaught_exception_is_found_in_any_garbage(before, after, rank):
    text = before + "\n\n" + ranked(BLOCK, rank) + after

    assert rank_error(text, None, signal.SIGKILL) == ERROR


@settings(max_examples=50, deadline=None)
@given(cut=st.integers(0, len(BLOCK) - len(BLOCK.rpartition("  File")[2]) - len("  File") - 1))
def test_a_text_cut_anywhere_before_the_last_frame_still_tells(cut):
    padding = "z" * (TAIL_CHARS - len(BLOCK[cut:]))
    text = "z\n" * 50 + BLOCK[:cut] + BLOCK[cut:]

    assert last_exception(text[-(len(BLOCK) - cut) :]).type == "ValueError"
    assert last_exception(padding + "\n" + BLOCK) == ERROR


def test_a_tail_full_of_tracebacks_is_read_in_a_moment():
    # 64 KiB of exceptions is the worst that can be read; a search that is not linear would take minutes.
    text = (BLOCK + "INFO ok\n") * 1000

    assert rank_error(text, 1, None) == ERROR
