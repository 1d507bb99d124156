"""What a dump leaves out."""

from __future__ import annotations

import orjson
import pytest

from nvrx_launcher.blank import BLANK, blanked, blanked_data, blanked_lines


@pytest.mark.parametrize(
    "text",
    [
        "--api-key hunter2",
        "--token=hunter2",
        "password: hunter2",
        "https://ada:hunter2@host/x",
        "https://hunter2@host/x",
        "https://:hunter2@host/x",
        "WANDB_API_KEY=hunter2",
        "AWS_ACCESS_KEY_ID=hunter2",
        "PRIVATE_KEY=hunter2",
        "--wandb-key hunter2",
        "Authorization: Bearer hunter2",
        "OTEL_EXPORTER_OTLP_HEADERS=authorization=Basic%20hunter2,x=hunter2",
        "Cookie: a=1; b=hunter2",
        "sent bearer hunter2 to host",
        '{"token": "hunter2"}',
        "{'password': 'a hunter2'}",
        "PGPASSWORD='two hunter2'",
        "login with hf_abcdefghunter2",
        "ghp_0123456789hunter2 was refused",
        "sk-proj-0123456789hunter2",
        "eyJhbGciOi.hunter2.sig",
    ],
)
def test_what_looks_like_a_secret(text):
    assert "hunter2" not in blanked(text)


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: bad shard 7 (train.py:41)",
        "--tokenizer /data/llama --lr 3",
        "tokenizer=/data/llama",
        "RuntimeError: Connection closed by peer [10.0.0.2]:2242.",
        "https://etcd.example:2379/health",
    ],
)
def test_what_does_not_is_kept(text):
    assert blanked(text) == text


def test_a_command_line_in_pieces_too():
    command = ["train.py", "--api-key", "hunter2", "--lr", "3", "-H", "Authorization: Bearer hunter2"]
    assert blanked_data({"command": command}) == {
        "command": ["train.py", "--api-key", BLANK, "--lr", "3", "-H", f"Authorization: {BLANK}"]
    }
    assert (
        blanked_data({"headers": {"x": "1", "authorization": "hunter2"}})["headers"]["authorization"] == BLANK
    )


def test_the_token_of_a_seal_is_no_secret():
    assert blanked_data({"token": "a1b2-1"}) == {"token": "a1b2-1"}


def test_lines_of_json_stay_json():
    value = {"last_lines": ["password='a hunter2'", "x"], "token": "a1-1", "step": 7}
    text = blanked_lines(
        f"{orjson.dumps(value).decode()}\nplain --token hunter2\n{{torn hunter2: token=hunter2\n"
    )
    first, second, third = text.splitlines()
    assert orjson.loads(first) == {"last_lines": [f"password='{BLANK}'", "x"], "token": "a1-1", "step": 7}
    assert second == f"plain --token {BLANK}"
    assert third.endswith(f"token={BLANK}")
