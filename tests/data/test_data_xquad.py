"""XQuAD and XQuAD-R as they are published: parallel questions over parallel paragraphs."""

import gzip
import hashlib
import json

import pytest
from prepared_data import prepared

from lcrag.data.rows import BadRows
from lcrag.data.xquad import xquad_file, xquad_passages, xquad_questions
from lcrag.errors import UserError

HERE = ("en", "ar", "de", "es", "ru", "th", "vi", "zh")


def asked(folder, split, languages, **options):
    return xquad_questions(folder, split, languages, **{"bad_rows": BadRows()} | options)


def test_every_language_has_the_same_questions():
    folder = prepared("xquad")
    expected = json.loads((folder / "stats_all_12.json").read_text())
    questions = asked(folder, "all", HERE)
    assert len(questions) == 1190 * len(HERE)
    ids = [question.id for question in questions[:: len(HERE)]]
    assert hashlib.sha256("\n".join(ids).encode()).hexdigest() == expected["sha256_of_ids_newline_joined"]
    for place in range(0, len(questions), len(HERE)):
        versions = questions[place : place + len(HERE)]
        assert tuple(version.language for version in versions) == HERE
        assert len({(version.id, version.extra["passage"]) for version in versions}) == 1


@pytest.mark.parametrize("language", HERE)
def test_a_question_s_passage_holds_its_answer(language):
    folder = prepared("xquad")
    passages = {passage.id: passage for passage in xquad_passages(folder, language, BadRows())}
    questions = asked(folder, "all", (language,))
    assert (len(passages), len(questions)) == (240, 1190)
    assert all(question.answers[0] in passages[question.extra["passage"]].text for question in questions)
    assert not any(passage.text.startswith("\ufeff") for passage in passages.values())
    with gzip.open(xquad_file(folder, language), "rt", encoding="utf-8") as file:
        plain = [article["paragraphs"] for article in json.load(file)["data"]]
    texts = [paragraph["context"].lstrip("\ufeff").strip() for article in plain for paragraph in article]
    assert [passage.text for passage in passages.values()] == texts


def test_splits_share_no_article():
    folder = prepared("xquad")
    articles = {}
    for split in ("train", "test"):
        questions = asked(folder, split, ("en", "th"))
        articles[split] = {question.extra["passage"].split("/")[0] for question in questions}
    assert (len(articles["train"]), len(articles["test"])) == (36, 12)
    assert not articles["train"] & articles["test"]
    fewer = {question.extra["passage"].split("/")[0] for question in asked(folder, "test", ("en",), test_articles=3)}
    assert len(fewer) == 3
    assert fewer < articles["test"]
    with pytest.raises(UserError, match="no split 'dev' of the articles of xquad: use one of test, train, all"):
        asked(folder, "dev", ("en",))


def test_xquad_r_is_read_too():
    plain, sentences = prepared("xquad"), prepared("xquad_r")
    assert asked(sentences, "test", ("en", "ar", "zh")) == asked(plain, "test", ("en", "ar", "zh"))


def test_a_question_that_one_language_lacks_is_dropped_for_all(tmp_path):
    folder = prepared("xquad")
    for language in ("en", "de"):
        with gzip.open(xquad_file(folder, language), "rt", encoding="utf-8") as file:
            content = json.load(file)
        if language == "de":
            del content["data"][0]["paragraphs"][0]["qas"][0]["question"]
        (tmp_path / f"xquad.{language}.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="xquad.de.json, line 1, field data.0.paragraphs.0.qas.0.question: field requ"):
        asked(tmp_path, "all", ("en", "de"))
    questions = asked(tmp_path, "all", ("en", "de"), bad_rows=BadRows(skip=True))
    assert len(questions) == 2 * 1189


def test_missing_languages(tmp_path):
    with pytest.raises(UserError, match="xquad has no questions in 'fi'"):
        asked(tmp_path, "all", ("fi",))
    with pytest.raises(UserError, match="no xquad.ro.json in .*: download https://github.com/google-deepmind/xquad/"):
        asked(tmp_path, "all", ("ro",))
