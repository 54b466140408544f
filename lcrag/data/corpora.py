"""The corpus of a language: its files and their formats, its documents in blocks, and its passages as one stream.

Documents are pages of a Wikimedia dump, articles to cut into passages, or ready-made passages. Articles: the folders of
`wikimedia/wikipedia` (Parquet), JSON lines with the same fields, or text files. Passages: MIRACL (`docid`, `title`,
`text`), BEIR (`_id`, `title`, `text`), FlashRAG and Search-R1 (`id`, `contents` with the title, usually quoted, in the
first line), Mr. TyDi and Pyserini (the same, unquoted), in Parquet or JSON lines; DPR's `psgs_w100.tsv` (`id`, `text`,
`title`); the paragraphs of SQuAD's format (XQuAD, MLQA).

Articles are cut into passages of 100 words, or of 100 characters in scripts without spaces between words. As in LcRL
(Appendix A.2), the title does not count and precedes every passage.
"""

import collections
import concurrent.futures.process
import contextlib
import dataclasses
import html
import io
import itertools
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import re
import sys
import threading
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

import mwparserfromhell
import pydantic
from mwparserfromhell import nodes
from mwparserfromhell.parser import ParserError
from mwparserfromhell.wikicode import Wikicode

from lcrag.data.questions import scripts_of, trimmed
from lcrag.data.rows import BadRows, Row, first_line_fields, opened, parquet_values, parsed_rows, read_squad
from lcrag.errors import UserError
from lcrag.files import expanded, matching_files, shown_files
from lcrag.retrieval.passages import Passage
from lcrag.rewards.text import UNSPACED, is_visible


@dataclasses.dataclass(frozen=True, kw_only=True)
class WikiPage:
    """A page of a Wikimedia dump."""

    id: str  # its number in the wiki
    title: str
    wikitext: str  # of its last revision
    hidden_namespaces: frozenset[str]  # lower-case names of those whose links show no text: files, categories


@dataclasses.dataclass(frozen=True, kw_only=True)
class Article:
    """An article in plain text, to be cut into passages."""

    id: str
    title: str
    text: str


Document = WikiPage | Article | Passage
Kind = Literal["dump", "articles", "passages", "squad"]
KINDS: tuple[str, ...] = get_args(Kind)

DOCUMENTS_PER_BLOCK = 1024  # articles; a block of ready-made passages holds as many as about so many articles have
PASSAGES_PER_DOCUMENT = 8
# Endings of file names, without .bz2 or .gz, -> the kind of their documents; None: their first row tells.
_FORMATS: Mapping[str, Kind | None] = {
    ".xml": "dump",
    ".json": "squad",
    ".parquet": None,
    ".jsonl": None,
    ".tsv": "passages",
    ".txt": "articles",
}
# Number of JSON lines searched for a valid one, from which the kind of the file is inferred.
_MAX_LINES_SEARCHED = 100

Unit = Literal["words", "characters"]

PASSAGE_LENGTH = 100
# ISO 15924 codes of the scripts that put no spaces between words.
_UNSPACED_SCRIPTS = frozenset("Hani Hira Kana Bopo Thai Laoo Khmr Mymr Tibt Lana Talu Tale Yiii".split())

Identifier = Annotated[str, pydantic.Field(min_length=1)] | int


class ArticleRow(Row):
    """`{"id": ..., "title": ..., "text": ...}`; `url` and other fields are ignored."""

    id: Identifier
    title: str
    text: str


class PassageRow(Row):
    """A passage; its text is in `text` or `contents`."""

    id: Annotated[Identifier, pydantic.Field(validation_alias=pydantic.AliasChoices("docid", "_id", "id"))]
    title: str = ""
    text: str | None = None
    contents: str | None = None

    @pydantic.model_validator(mode="after")
    def _has_content(self) -> "PassageRow":
        if self.text is None and self.contents is None:
            raise ValueError("neither text nor contents is there")
        if not is_visible(self.passage().text):
            raise ValueError("the text has no visible character")
        return self

    def passage(self) -> Passage:
        """Returns the passage; the first of several lines of `contents` is its title."""
        title, text = self.title.strip(), self.text
        if text is None:
            first, line_break, rest = (self.contents or "").partition("\n")
            title, text = (first.strip(), rest) if line_break else ("", first)
            if len(title) > 1 and title[0] == title[-1] == '"':
                title = title[1:-1]
        return Passage(id=str(self.id), title=trimmed(title), text=trimmed(text))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Consecutive documents of one file, which are cleaned and cut together."""

    file: int  # its index in the source
    path: pathlib.Path
    number: int  # the block's index in the file
    documents: tuple[Document, ...]
    bytes_read: int  # position in the stored file at the end of the block
    problems: tuple[tuple[str, str], ...] = ()  # (page, problem) of the pages that cannot be parsed

    @property
    def name(self) -> str:
        """The block's name; names sort in the order of a source's blocks."""
        return f"{self.file:05d}-{self.number:07d}"

    def cleaned(self) -> "Block":
        """Returns the block with the wiki pages that have text as articles."""
        documents: list[Document] = []
        problems = []
        for document in self.documents:
            if isinstance(document, WikiPage):
                try:
                    text = plain_text(document.wikitext, document.hidden_namespaces, document.title)
                except ParserError as error:
                    page = f"page {document.id} ({document.title})"
                    problems.append((page, f"its wikitext cannot be parsed ({error})"))
                    continue
                if not text:
                    continue
                document = Article(id=document.id, title=document.title, text=text)
            documents.append(document)
        return dataclasses.replace(self, documents=tuple(documents), problems=tuple(problems))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """The files with the documents of one language, and how these are cut into passages; see `find_source`."""

    language: str  # its code, also the name of the collection
    files: tuple[pathlib.Path, ...]  # in reading order
    kind: Kind
    unit: Unit | None  # of the passages' length; None: that of each article's script; unused for ready-made passages
    length: int

    def identity(self) -> dict[str, Any]:
        """Returns everything that the passages depend on, with files by name and size."""
        files = [f"{path.name}: {path.stat().st_size} bytes" for path in self.files]
        cut = {"unit": self.unit or unit_of(self.language), "length": self.length}
        return {"language": self.language, "kind": self.kind, "files": files, **cut}

    def documents(self, path: pathlib.Path, bad_rows: BadRows) -> Iterator[tuple[int, Document]]:
        """Yields (bytes of the stored file read so far, document) for a file."""
        with opened(path) as (content, stored):
            documents: Iterator[Document]
            match self.kind:
                case "dump":
                    documents = read_pages(content, path)
                case "squad":
                    documents = (paragraph.passage for paragraph in read_squad(path, bad_rows, questions_too=False))
                case "passages":
                    documents = (row.passage() for _, row in parsed_rows(path, content, PassageRow, bad_rows))
                case "articles" if _format(path) == ".txt":
                    # The title is the first line if that is a Markdown heading, else the file's name.
                    stem, text = path.name.partition(".")[0], content.read().decode().strip()
                    title = stem.replace("_", " ")
                    if text.startswith("#"):
                        first, _, text = text.partition("\n")
                        title, text = first.lstrip("# ").strip(), text.strip()
                    article = Article(id=f"{path.absolute().parent.name}/{stem}", title=title, text=text)
                    documents = iter([article] if is_visible(text) else [])
                case "articles":
                    rows = (row for _, row in parsed_rows(path, content, ArticleRow, bad_rows) if is_visible(row.text))
                    documents = (Article(id=str(row.id), title=trimmed(row.title), text=row.text) for row in rows)
            for document in documents:
                yield stored.tell(), document

    def blocks(self, file: int, bad_rows: BadRows) -> Iterator[Block]:
        """Yields the documents of the file with index `file` in blocks; its last one is empty only in an empty file."""
        path, number, bytes_read = self.files[file], 0, 0
        size = DOCUMENTS_PER_BLOCK * (PASSAGES_PER_DOCUMENT if self.kind in ("passages", "squad") else 1)
        waiting: list[Document] = []
        for position, document in self.documents(path, bad_rows):
            if len(waiting) == size:
                yield Block(file=file, path=path, number=number, documents=tuple(waiting), bytes_read=bytes_read)
                number, waiting = number + 1, []
            waiting.append(document)
            bytes_read = position
        size = path.stat().st_size
        yield Block(file=file, path=path, number=number, documents=tuple(waiting), bytes_read=size)

    def cut(self, block: Block, bad_rows: BadRows) -> list[Passage]:
        """Reports the problems of a cleaned block, and returns its passages.

        The ids of passages cut from an article are `<article>#<number>`, numbers from 0 as in MIRACL.
        """
        for page, problem in block.problems:
            bad_rows.add(block.path, None, page, problem)
        articles = [document for document in block.documents if isinstance(document, Article)]
        units = [self.unit or unit_of_text(article.text) for article in articles]
        cut: list[list[str]] = [[] for _ in articles]
        for unit in dict.fromkeys(units):
            places = [place for place, own in enumerate(units) if own == unit]
            pieces = chunks([articles[place].text for place in places], unit, self.length)
            for place, own_pieces in zip(places, pieces, strict=True):
                cut[place] = own_pieces
        passages = [document for document in block.documents if isinstance(document, Passage)]
        for article, texts in zip(articles, cut, strict=True):
            passages += [
                Passage(id=f"{article.id}#{n}", title=article.title, text=text)
                for n, text in enumerate(texts)
                if is_visible(text)
            ]
        return passages

    def passages(
        self,
        bad_rows: BadRows | None = None,
        progress: Callable[[float], None] = lambda share: None,
        workers: int | None = None,
    ) -> Iterator[Passage]:
        """Yields the passages in the order of the files.

        Args:
          bad_rows: Takes the rows that cannot be used; None: the first is a UserError.
          progress: Called after each block of documents with the share of the source's bytes that was read.
          workers: Processes that clean wikitext; None: one less than the available cores, at least one; 0: this process
            cleans.
        """
        sizes, bad_rows = [path.stat().st_size for path in self.files], bad_rows or BadRows()
        if self.kind != "dump":
            workers = 0
        elif workers is None:
            workers = max(1, len(os.sched_getaffinity(0)) - 1)
        blocks = (block for file in range(len(sizes)) for block in self.blocks(file, bad_rows))
        with contextlib.closing(_all_cleaned(blocks, workers)) as ready:
            for block in ready:
                yield from self.cut(block, bad_rows)
                progress(min(1.0, (sum(sizes[: block.file]) + block.bytes_read) / max(1, sum(sizes))))


def _all_cleaned(blocks: Iterator[Block], workers: int) -> Generator[Block, None, None]:
    """Yields every block cleaned, in order; at most two blocks per worker are cleaned in advance."""
    if not workers:
        yield from map(Block.cleaned, blocks)
        return
    # Forking would copy the threads' locks of JAX.
    context = multiprocessing.get_context("spawn")
    try:
        pool = concurrent.futures.ProcessPoolExecutor(workers, context, initializer=_end_with_the_parent)
    except (OSError, ImportError, NotImplementedError) as error:  # its semaphores are in /dev/shm
        print(f"lcrag: wikitext is cleaned in one process, because there are no semaphores ({error})", file=sys.stderr)
        yield from map(Block.cleaned, blocks)
        return
    waiting: collections.deque[concurrent.futures.Future[Block]] = collections.deque()
    try:
        for block in blocks:
            waiting.append(pool.submit(Block.cleaned, block))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise UserError(
            "a process that cleans wikitext was ended, as happens without memory: run the same command again, with"
            f" index.workers lower than {workers}"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_the_parent() -> None:
    """Ends this process when its parent dies; otherwise it would wait for work forever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel] if parent else [])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def find_source(
    language: str, place: str, kind: Kind | None = None, unit: Unit | None = None, length: int = PASSAGE_LENGTH
) -> Source:
    """Returns the source of a language.

    Args:
      place: A file, a folder (all files of known formats) or a pattern with `*`; files are sorted by name and number.
      kind: "dump" (Wikimedia XML), "articles" (plain text, to be cut), "passages" (ready-made) or "squad" (paragraphs
        of a reading comprehension data set); None: inferred from the name or first row of the first file.
      unit: Unit of the passages' length; None: that of the language's script, or of each article's if CLDR does not
        know the language or has several for it.
    """
    path = expanded(place)
    if path.is_dir():
        files = [file for file in shown_files(path, "**/*") if file.is_file() and _format(file) in _FORMATS]
        # A README.md next to files of rows is not a text to index.
        files = [file for file in files if _format(file) != ".txt"] or files
    else:
        files = [file for file in matching_files(path) if file.is_file()]
    if not files:
        raise UserError(
            f"there is no file at {place}: name a dump, a Parquet, JSON lines, tab-separated or text file, or a folder"
            " of such files"
        )
    if unknown := [file for file in files if _format(file) not in _FORMATS]:
        known = ", ".join(_FORMATS)
        raise UserError(
            f"{unknown[0]} has an unknown format: its name must end in {known}, optionally followed by .gz or .bz2"
        )
    formats = sorted({_format(file) for file in files})
    if len(formats) > 1:
        raise UserError(f"{place} holds files of several formats ({', '.join(formats)}): name one, as *.jsonl")
    files.sort(key=lambda file: [(text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", str(file))])
    kind = kind or _FORMATS[formats[0]] or _kind_by_rows(files[0])
    if kind not in KINDS:
        raise UserError(f"unknown kind of source {kind!r}: use one of {', '.join(KINDS)}")
    needed = _FORMATS[formats[0]] if formats[0] != ".tsv" else None
    if (needed or kind) != kind or (kind in ("dump", "squad") and not needed):
        raise UserError(f"{files[0]} does not have the format of kind {kind!r}: omit the kind")
    scripts = scripts_of(language)
    if unit is None and scripts and (scripts <= _UNSPACED_SCRIPTS or not scripts & _UNSPACED_SCRIPTS):
        unit = unit_of(language)
    return Source(language=language, files=tuple(files), kind=kind, unit=unit, length=length)


def _format(path: pathlib.Path) -> str:
    suffix = (path.with_suffix("") if path.suffix in (".bz2", ".gz") else path).suffix
    if suffix == ".json" and (fields := first_line_fields(path)) and "data" not in fields:
        return ".jsonl"  # by another name
    return ".txt" if suffix == ".md" else suffix


def _kind_by_rows(path: pathlib.Path) -> Kind:
    """Infers the kind of a file from the fields of its first row, in JSON lines of the first valid one."""
    fields: set[str] = set()
    with opened(path) as (content, _):
        if _format(path) == ".parquet":
            fields = set(next(parquet_values(content), {}))
        else:
            lines = [line for line in itertools.islice(content, _MAX_LINES_SEARCHED) if line.strip()]
            for line in lines:
                # A bad row is reported when the rows are read.
                with contextlib.suppress(pydantic.ValidationError):
                    fields = set(pydantic.TypeAdapter(dict[str, Any]).validate_json(line))
                    break
            if lines and not fields:
                raise UserError(f"no line of {path}, from line 1 on, is a JSON object: is it a file of JSON lines?")
    if not fields:
        raise UserError(f"{path} holds no row: name another file, or make this one again")
    if fields & {"docid", "_id", "contents"}:
        return "passages"
    if fields >= {"id", "title", "text", "url"}:
        return "articles"
    raise UserError(
        f'cannot infer whether {path} holds articles or passages: set index.kind to "articles" or "passages"'
    )


def unit_of(language: str) -> Unit:
    """Returns the unit of a language's passages, by the script that CLDR considers most likely.

    Args:
      language: A code as in Wikipedia: "fi", "zh", "zh-yue", "zh-min-nan" (which is in Latin letters).
    """
    scripts = scripts_of(language)
    return "characters" if scripts and scripts <= _UNSPACED_SCRIPTS else "words"


def unit_of_text(text: str) -> Unit:
    """Returns "characters" for a text with more characters of scripts without spaces than words between spaces."""
    return "characters" if len(UNSPACED.findall(text)) > len(text.split()) else "words"


def chunks(texts: Sequence[str], unit: Unit, length: int = PASSAGE_LENGTH) -> list[list[str]]:
    """Cuts each text into consecutive pieces of `length` words or characters; white space becomes single spaces.

    No piece begins with a combining mark, such as a Thai vowel: it stays with its base character.
    """
    if length < 1:
        raise UserError(f"passages cannot have {length} {unit}: use at least one")
    return [_pieces(text, unit, length) for text in texts]


def _pieces(text: str, unit: Unit, length: int) -> list[str]:
    words = text.split()
    if unit == "words":
        return [" ".join(words[start : start + length]) for start in range(0, len(words), length)]
    text, pieces, start = " ".join(words), [], 0
    while start < len(text):
        stop = start + length
        while stop < len(text) and unicodedata.category(text[stop]).startswith("M"):
            stop += 1
        pieces.append(text[start:stop].strip())
        start = stop
    return [piece for piece in pieces if piece]


# --- Wikipedia dumps ---


# Elements whose content is not running text.
_HIDDEN_TAGS = frozenset(
    "ref references table gallery math chem ce score timeline imagemap inputbox categorytree graph mapframe maplink"
    " templatedata templatestyles syntaxhighlight source section indicator hiero style script includeonly".split()
)
_BREAKING_TAGS = frozenset("br p div ul ol dl li dd dt hr h1 h2 h3 h4 h5 h6 center blockquote poem".split())
# Links to the same article in another language, as dumps had them before Wikidata.
_INTERLANGUAGE = re.compile(r"(?:[a-z]{2,3}|simple)(?:-[a-z]+)*:(?!\s)")
# Every wiki has the English words in any case, and its own in capitals or a script without case; `__init__` is text.
_MAGIC_WORD = re.compile(
    r"__(?:(?i:(?:no|force)?toc|noeditsection|nogallery|(?:no)?index|(?:no)?newsectionlink|hiddencat|disambig"
    r"|staticredirect|notc|nocc|no(?:title|content)convert)|[^\W\d_a-z][^\s\d_a-z]*(?:_[^\s\d_a-z]+)*)__+"
)
_ATTRIBUTES = r"(?:\s+[\w:-]+\s*=[^<>]*|\s*)/?\s*"
# Tags that the next one closes: unclosed, they would contain each other to mwparserfromhell, which stops at a depth.
_LINE_TAG = re.compile(
    r"(<(nowiki|pre|syntaxhighlight|source)\b[^<>]*>.*?</\2\s*>|<!--.*?-->)"
    rf"|</?(?:br|p|li|dd|dt|tr|td|th){_ATTRIBUTES}>",
    re.DOTALL | re.IGNORECASE,
)
# What is not closed stays in the text that mwparserfromhell returns: tags, which must look like HTML's or an
# extension's with attributes, and comments, which MediaWiki hides to the end of the page.
_HTML_TAGS = (
    "a abbr b bdi bdo big caption cite code col colgroup data del dfn em font i ins kbd mark"
    " noinclude nowiki onlyinclude pre q rb rp rt ruby s samp small span strike strong sub sup tbody td tfoot th"
    " thead time tr tt u var wbr"
).split()
_LEFT_TAG = re.compile(
    rf"</?({'|'.join((*_HTML_TAGS, *_HIDDEN_TAGS, *_BREAKING_TAGS))}){_ATTRIBUTES}>"
    r'|<ref\s+name\s*=\s*(?:"[^"\n]*"|[^\s<>]+)',  # without its bracket
    re.IGNORECASE,
)
_LEFT_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_FILE = re.compile(
    r"[^\s:|][^:|\n]*:[^|\n]*\.(?:jpe?g|png|gif|svg|tiff?|webp|xcf|pdf|djvu|og[gvax]|opus|flac|wav|mp[34g]|mid|webm|stl)\s*",
    re.IGNORECASE,
)
_TEMPLATE_BEGINS = re.compile(r"\{\{[^{}|.]{1,60}\|?")  # its name alone on a line
# Markup that a page shows as text, from <nowiki> and entities, passes as characters that XML cannot contain.
_SHOWN_MARKUP = str.maketrans("<>{}[]|!'_", "\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17")
_MARKUP_OF = {shown: character for character, shown in _SHOWN_MARKUP.items()}
_QUOTES = re.compile(r"'{5}|'''|''")
# Chinese: -{zh-hans:计算机; zh-hant:電腦}- and -{word}-.
_VARIANTS = re.compile(r"-\{(?:[^{}|]*\|)?([^{}]*)\}-")
_WANTED_VARIANT = re.compile(r"zh-(?:hans|cn)\s*:\s*([^;]*)")
_FIRST_VARIANT = re.compile(r"\s*[a-z]{2,3}(?:-[a-z]+)+\s*:\s*([^;]*)")
# Left over when templates are removed: "( ; 1815)", "()", " ,".
_LEADING_SEPARATORS = re.compile(r"([(（])[\s,;:，；、]+")
_EMPTY_BRACKETS = re.compile(r"\s*[(（][\s,;:，；、]*[)）]")
_SPACE_BEFORE = re.compile(r"[ \t]+([,;.،。，、])(?=\s|$)", re.MULTILINE)
_SPACES = re.compile(r"[ \t\xa0]+")
# Marks headings, repeated once per level; XML cannot contain it.
_HEADING = "\x1d"


def plain_text(wikitext: str, hidden_namespaces: frozenset[str] = frozenset(), title: str = "") -> str:
    """Returns the running text of a page: one line per paragraph, list item, and heading of a non-empty section.

    Args:
      hidden_namespaces: Lower-case names of the namespaces whose links show no text.
      title: The page's title, for `{{PAGENAME}}`.
    """
    wikitext = _LINE_TAG.sub(lambda found: found[1] or "\n", wikitext)
    parsed = mwparserfromhell.parse(wikitext, skip_style_tags=True)
    text = _LEFT_COMMENT.sub("", "".join(_shown(parsed, hidden_namespaces, title)))
    text = _LEFT_TAG.sub(lambda tag: "\n" if (tag[1] or "").lower() in _BREAKING_TAGS else "", text)

    def variant(word: re.Match) -> str:
        """Chooses the mainland variant of a word given in several Chinese variants, else the first."""
        chosen = _WANTED_VARIANT.search(word[1]) or _FIRST_VARIANT.match(word[1])
        return chosen[1].strip() if chosen else word[1]

    text = _QUOTES.sub("", _MAGIC_WORD.sub("", _VARIANTS.sub(variant, text)))
    text = _EMPTY_BRACKETS.sub("", _LEADING_SEPARATORS.sub(r"\1", text))
    text = _SPACE_BEFORE.sub(r"\1", _SPACES.sub(" ", text))
    # Lines of tables and templates that are not closed, and of files in such galleries.
    lines, in_table = [], False
    for line in text.split("\n"):
        line = line.strip(" \t")
        if line.startswith("{|") or (in_table and line.startswith("!")):
            in_table = True
        elif line.startswith("|") and not line.startswith("|}"):
            continue
        elif _TEMPLATE_BEGINS.fullmatch(line) or _FILE.fullmatch(line.partition("|")[0]):
            continue
        elif any(map(str.isalnum, line := line.removeprefix("|}").removeprefix("}}").strip(" \t"))):
            lines.append(line)
            in_table = in_table and not line.startswith(_HEADING)
    # Headings, such as that of references, go if their sections have become empty.
    kept: list[str] = []
    level_below = 1  # level of the following line: a heading's, or 7 for running text; 1 at the end of the page
    for line in reversed(lines):
        level = len(line) - len(line.lstrip(_HEADING))
        if not level:
            kept.append(line)
            level_below = 7
        elif level < level_below:
            kept.append(line.lstrip(_HEADING).strip())
            level_below = level
    return "\n".join(kept[::-1]).translate(_MARKUP_OF)


def _shown(code: Wikicode, hidden: frozenset[str], page: str) -> Iterator[str]:
    """Yields the text of every visible node."""
    for node in code.nodes:
        match node:
            case nodes.Text():
                yield node.value
            case nodes.HTMLEntity():
                yield node.normalize().translate(_SHOWN_MARKUP)
            case nodes.Template():
                yield _shown_template(node, hidden, page)
            case nodes.Wikilink(title=link, text=text):
                title = html.unescape(str(link)).strip()
                namespace, colon, _ = title.partition(":")
                # Of no text to a reader: categories, files (also under a namespace's old name, where the link has
                # several parts), and links to the same article in another language.
                if colon and (namespace.strip().lower() in hidden or _FILE.fullmatch(title)):
                    continue
                if text is None:
                    yield "" if colon and _INTERLANGUAGE.match(title) else title.removeprefix(":")
                elif not colon or "|" not in str(text):
                    yield from _shown(text, hidden, page)
            case nodes.ExternalLink():
                yield "".join(_shown(node.title, hidden, page)) if node.title else ""
            case nodes.Heading():
                yield f"\n{_HEADING * node.level}{''.join(_shown(node.title, hidden, page))}\n"
            case nodes.Tag():
                name = str(node.tag).strip().lower()
                if name in _BREAKING_TAGS:
                    yield "\n"
                if name in ("nowiki", "pre") and node.contents is not None:
                    yield "".join(_shown(node.contents, hidden, page)).translate(_SHOWN_MARKUP)
                elif name not in _HIDDEN_TAGS and node.contents is not None:
                    yield from _shown(node.contents, hidden, page)
                if name in _BREAKING_TAGS and node.contents:
                    yield "\n"


# Templates that are part of a sentence, by what they show; others (infoboxes, citations, notices) show nothing.
_PAGE_NAMES = frozenset(("pagename", "fullpagename"))
_CONVERSIONS = frozenset("convert cvt conversion تحويل রূপান্তর".split())
_NUMBER_FUNCTIONS = frozenset("formatnum formatnombre formatonúmero formatnúmero zahlenformat".split())
# Their first argument.
_FIRST = frozenset(
    "abbr abbrlink big blockquote ill nobr nobold nowrap nts nwr quote ruby small smaller larger sub sup"
    " tooltip".split()
)
_SECOND = frozenset(("lang", "langue", "langx", "llang", "color", "font color"))  # their second, after a code
_LAST = frozenset("transl translit transliteration".split())  # their last
_DATES = re.compile(r"(?:birth|death|start|end) date(?: and age)?|dob|bda")
_ABOUT = {"as of": "as of", "circa": "c.", "c.": "c."}
_ALL_ARGUMENTS = frozenset("num nombre unité unite unidad fmtn число liczba".split())  # a number and its unit
_MARKS = {"ndash": "–", "–": "–", "snd": " – ", "spaced ndash": " – ", "mdash": "—", "nbsp": " ", "'": "'", "=": "="}
_MARKS |= {"'s": "'s", "en dash": "–", "em dash": "—", "snds": " – ", "okina": "ʻ", "pi": "π"}
_MONEY = {"us$": "US$", "usd": "US$", "a$": "A$", "c$": "C$", "gbp": "£", "£": "£", "eur": "€", "€": "€", "inr": "₹"}
_RANGES = {"-": "–", "–": "–", "x": " × ", "by": " × ", "+/-": " ± ", "to": " to ", "and": " and ", "or": " or "}
_UNITS = {"C": "°C", "F": "°F", "sqmi": "sq mi", "sqft": "sq ft"}


def _shown_template(node: nodes.Template, hidden: frozenset[str], page: str) -> str:
    """Returns the text of a template that stands for a number or words of a sentence; empty for another."""
    name, colon, _ = _LEFT_COMMENT.sub("", str(node.name)).strip().partition(":")
    name = name.replace("_", " ").casefold()
    if colon:
        return "".join(_shown(node.name, hidden, page)).partition(":")[2] if name in _NUMBER_FUNCTIONS else ""
    values = [
        "".join(_shown(each.value, hidden, page)).strip()
        for each in node.params
        if not each.showkey or each.name == "1"
    ]
    named = {str(each.name).strip(): str(each.value).strip() for each in node.params if each.showkey}
    if name in _PAGE_NAMES:
        return page
    if not any(values):
        return _MARKS.get(name, "")
    if name in _CONVERSIONS:
        return _measure(values) if values[0] else ""
    if name == "val":
        uncertainty = f" ± {values[1]}" if len(values) > 1 else ""
        power, unit = named.get("e"), named.get("u") or named.get("ul")
        return f"{values[0]}{uncertainty}{f' × 10^{power}' if power else ''}{f' {unit}' if unit else ''}"
    if name in ("frac", "sfrac", "fraction"):
        whole = values[:-2] if len(values) > 2 else []
        return " ".join([*whole, "/".join(values[-2:] if len(values) > 1 else ["1", *values])])
    if name.startswith("nihongo"):
        others = ", ".join(filter(None, values[1:3]))
        return f"{values[0]} ({others})" if values[0] and others else values[0] or others
    if name in _SECOND:
        return values[1] if len(values) > 1 else named.get("text", "")
    if name in _LAST:
        return values[-1] if len(values) > 1 else ""
    if _DATES.fullmatch(name):
        return "-".join(itertools.takewhile(str.isdigit, values[:3]))
    if name in _MONEY:
        return f"{_MONEY[name]}{values[0]}"
    if name in _ABOUT:
        return f"{_ABOUT[name]} {values[0]}"
    if name in _ALL_ARGUMENTS:
        return " ".join(values[:2])
    return values[0] if name in _FIRST or name.startswith("lang-") else ""


def _measure(values: Sequence[str]) -> str:
    """Returns what `{{convert|5|to|10|km|mi}}` is given, without the conversion: 5 to 10 km."""
    shown, rest = values[0], list(values[1:])
    while len(rest) > 1 and rest[0] in _RANGES:
        shown, rest = shown + _RANGES[rest[0]] + rest[1], rest[2:]
    if rest:
        shown += f" {_UNITS.get(rest[0]) or re.sub(r'(?<=m)[23]$', lambda power: '²³'[int(power[0]) - 2], rest[0])}"
    if len(rest) > 2 and rest[1][:1].isdigit():  # 6 ft 2 in
        shown += f" {rest[1]} {rest[2]}"
    return shown


# Keys of the namespaces whose links show no text (Media, File, Category), and their names: in every wiki the English
# ones, and those of categories in our languages, for dumps that do not list them. A file is known by its ending.
_HIDDEN_KEYS = ("-2", "6", "14")
_HIDDEN_EVERYWHERE = (
    "media", "file", "image", "category", "catégorie", "categoria", "categoría", "categorie", "kategori", "kategoria",
    "kategória", "kategorie", "kategorija", "kategorya", "katiguriya", "ñemohenda", "wàll",
    "luokka", "thể loại", "jamii", "sokajy", "ẹ̀ka",
    "òtù", "категория", "категорија", "категорія", "κατηγορία", "קטגוריה", "تصنيف", "رده", "تۈر", "श्रेणी",
    "বিষয়শ্রেণী", "వర్గం", "หมวดหมู่", "ចំណាត់ថ្នាក់ក្រុម", "መደብ", "ප්‍රවර්ගය", "カテゴリ", "分类", "分類", "분류",
)  # fmt: skip
# A page that begins with one of these words and a link is a redirect, also in a dump that does not mark it.
_REDIRECTS = frozenset(
    word.casefold().replace("\u0307", "")
    for word in (
        "REDIRECT", "تحويل", "OHJAUS", "UUDELLEENOHJAUS", "REDIRECTION", "転送", "リダイレクト", "RINVIA", "RINVIO",
        "RIMANDO", "ПЕРЕНАПРАВЛЕНИЕ", "ПЕРЕНАПР", "重定向", "重新導向", "WEITERLEITUNG", "넘겨주기", "REDIRECCIÓN",
        "REDIRECCION", "REDIRECIONAMENTO", "เปลี่ยนทาง", "পুনর্নির্দেশ", "దారిమార్పు", "OMDIRIGERING", "OMDIRIGER",
        "ΑΝΑΚΑΤΕΥΘΥΝΣΗ", "הפניה", "अनुप्रेषित", "पुनर्प्रेषित", "ÁTIRÁNYÍTÁS", "បញ្ជូនបន្ត", "LENCONG", "DOORVERWIJZING", "PATRZ",
        "PRZEKIERUJ", "TAM", "REDIRECTEAZA", "YÖNLENDİRME", "YÖNLENDİR", "đổi", "PŘESMĚRUJ", "تغییرمسیر", "تغییر_مسیر",
        "ALIH", "PERADRESAVIMAS", "FIHODINANA", "ELEKEZA", "ПРЕУСМЕРИ", "PREUSMERI", "ПЕРЕНАПРАВЛЕННЯ", "PUSAPUNA",
    )
)  # fmt: skip
_REDIRECT = re.compile(
    r"(?:\s|\ufeff|<!--(?:(?!-->).)*-->)*[#＃]\s?(?P<word>[^\s\[\]{}|:#*;]+)\s*:?\s*\[\[[^\[\]\n]+\]\](?P<rest>.*)",
    re.DOTALL,
)
_NO_TEXT = re.compile(r"(?:\s|\{\{[^{}]*\}\}|\[\[[^\[\]|:]+:[^\[\]]*\]\]|<!--(?:(?!-->).)*-->)*", re.DOTALL)


def _is_redirect(wikitext: str) -> bool:
    """Returns whether a page is a redirect: by its word in our languages, or as it holds nothing else with text."""
    begins = _REDIRECT.match(wikitext)
    # the dot of a Turkish İ stays apart
    word = begins["word"].casefold().replace("\u0307", "") if begins else ""
    return bool(begins and (word in _REDIRECTS or _NO_TEXT.fullmatch(begins["rest"])))


def read_pages(file: io.BufferedIOBase, path: pathlib.Path) -> Iterator[WikiPage]:
    """Yields the articles of a dump, in order: wikitext pages of the main namespace that are not redirects.

    Args:
      file: The decompressed XML, in any declared encoding.
      path: Its path for messages.
    """
    hidden = frozenset(_HIDDEN_EVERYWHERE)
    try:
        events = ElementTree.iterparse(file, events=("start", "end"))
        _, root = next(events)
        prefix, _, suffix = root.tag.rpartition("mediawiki")
        if suffix or root.tag != f"{prefix}mediawiki":
            raise UserError(f"{path} is not a Wikimedia dump: its root is {root.tag}, not mediawiki")
        for event, element in events:
            if event == "end" and element.tag == f"{prefix}siteinfo":
                names = element.findall(f"{prefix}namespaces/{prefix}namespace")
                hidden |= {name.text.lower() for name in names if name.get("key") in _HIDDEN_KEYS and name.text}
            elif event == "end" and element.tag == f"{prefix}page":
                last = element.findall(f"{prefix}revision")[-1:]
                text = last[0].findtext(f"{prefix}text", "") if last else ""
                is_article = element.findtext(f"{prefix}ns", "0") == "0" and element.find(f"{prefix}redirect") is None
                if (
                    is_article
                    and text.strip()
                    and not _is_redirect(text)
                    and last[0].findtext(f"{prefix}model", "wikitext") == "wikitext"
                ):
                    number, title = element.findtext(f"{prefix}id", ""), element.findtext(f"{prefix}title", "")
                    yield WikiPage(id=number, title=title, wikitext=text, hidden_namespaces=hidden)
                root.clear()  # else the whole dump stays in memory
    except ElementTree.ParseError as error:
        line = error.position[0]
        raise UserError(f"{path}, line {line} of its XML, cannot be read ({error}): download it again") from error
