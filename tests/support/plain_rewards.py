"""Reference implementations of `lcrag.rewards` in plain Python, for tests and benchmarks."""

import collections
import functools
import math
import re
import string
import unicodedata

import regex
import zhconv

PUNCTUATION = string.punctuation + "！？。，、；：（）【】《》〈〉「」『』" + "“”„‟‘’‚‛"


# Default_Ignorable_Code_Point of Unicode's DerivedCoreProperties.txt, except those of the category Cf.
FILLERS = {
    0x34F,
    0x115F,
    0x1160,
    0x17B4,
    0x17B5,
    *range(0x180B, 0x1810),
    0x2065,
    0x3164,
    0xFFA0,
    *range(0xFE00, 0xFE10),
}
FILLERS |= {*range(0xFFF0, 0xFFF9), *range(0xE0000, 0xE1000)}


def is_cjk(character, normalisation):
    if normalisation == "unicode":
        scripts = "Han", "Hiragana", "Katakana", "Bopomofo", "Hangul"
        return regex.match("|".join(rf"\p{{Script_Extensions={script}}}" for script in scripts), character) is not None
    return "\u4e00" <= character <= "\u9fff" or "\u3040" <= character <= "\u30ff" or "\uac00" <= character <= "\ud7af"


def is_arabic_mark(character):
    return "\u064b" <= character <= "\u0652" or character in "\u0670\u0640"


def is_invisible(character):
    return unicodedata.category(character) == "Cf" or ord(character) in FILLERS


def folded(text):
    text = unicodedata.normalize("NFD", "".join(character for character in text if not is_invisible(character)))
    for _ in range(2):
        text = unicodedata.normalize("NFKC", text.casefold())
    text = text.translate(dict.fromkeys(map(ord, "ʹʻʼʽ"), "'") | {0x2044: "/", 0x2215: "/", 0x2800: " "})
    signs = (str(unicodedata.decimal(each, each)) for each in text)
    text = "".join("-" if each in "˗−➖" or unicodedata.category(each) == "Pd" else each for each in signs)
    return text.translate(str.maketrans("ʹʻʼʽ\u2044\u2215\u2800", "''''// "))


def normalise(text, normalisation="lcrl"):
    text = text or ""
    text = folded(text) if normalisation == "unicode" else unicodedata.normalize("NFKC", text.lower())
    if any("\u4e00" <= character <= "\u9fff" for character in text):
        text = zhconv.convert(text, "zh-cn")
    text = "".join(" " if character in PUNCTUATION else character for character in text)
    if normalisation == "unicode":
        text = "".join(character for character in text if not is_arabic_mark(character))
        text = "".join(" " if unicodedata.category(character)[0] == "P" else character for character in text)
    text = re.sub(r"\s+", " ", text).strip()
    kept = [
        character
        for i, character in enumerate(text)
        if not (character == " " and is_cjk(text[i - 1], normalisation) and is_cjk(text[i + 1], normalisation))
    ]
    return "".join(kept)


def normalise_english(text, module=re):
    text = "".join(character for character in (text or "").lower() if character not in string.punctuation)
    return " ".join(module.sub(r"\b(a|an|the)\b", " ", text).split())


def grams(text, short_gold="whole"):
    if len(text) < 3:
        return [text] if text and short_gold != "zero" else []
    return [text[i : i + 3] for i in range(len(text) - 2)]


def set_recall(prediction, gold, short_gold="whole"):
    if short_gold == "contained" and 0 < len(gold) < 3:
        return float(gold in prediction)
    found, wanted = set(grams(prediction, short_gold)), set(grams(gold, short_gold))
    return len(found & wanted) / len(wanted) if wanted else 0.0


def visible(text):
    """The text, if it has a visible character."""
    seen = (
        unicodedata.category(each)[0] in "LNPS" and not is_invisible(each) and each != "\u2800" for each in text or ""
    )
    return text if any(seen) else ""


def best(score, normaliser, predictions, golds, vanished=0.0):
    """The best scores; `vanished` is that of two visible texts of which normalisation leaves nothing."""

    def scored(prediction, gold):
        normal = normaliser(prediction), normaliser(gold)
        return vanished if prediction and gold and normal == ("", "") else score(*normal)

    return [
        max((scored(visible(prediction), visible(gold)) for gold in own), default=0.0)
        for prediction, own in zip(predictions, golds, strict=True)
    ]


def c3_recall(predictions, golds, short_gold="whole", normalisation="lcrl"):
    normaliser = functools.partial(normalise, normalisation=normalisation)
    return best(lambda p, g: set_recall(p, g, short_gold), normaliser, predictions, golds)


def c3_f(predictions, golds, normalisation="lcrl"):
    def score(prediction, gold):
        recall, precision = set_recall(prediction, gold, "whole"), set_recall(gold, prediction, "whole")
        return 2 * recall * precision / (recall + precision) if recall else 0.0

    return best(score, functools.partial(normalise, normalisation=normalisation), predictions, golds)


def c3_recall_bergen(predictions, golds):
    def score(prediction, gold):
        found, wanted = (
            collections.Counter(gram for word in text.split() for gram in grams(word)) for text in (prediction, gold)
        )
        return (found & wanted).total() / wanted.total() if wanted else 0.0

    return best(score, functools.partial(normalise_english, module=regex), predictions, golds)


def exact_match(predictions, golds):
    return best(lambda p, g: float(g != "" and p == g), normalise, predictions, golds, 1.0)


def flexible_exact_match(predictions, golds):
    return best(lambda p, g: float(g != "" and g in p), normalise, predictions, golds, 1.0)


def squad_exact_match(predictions, golds):
    return best(lambda p, g: float(g != "" and p == g), normalise_english, predictions, golds, 1.0)


def squad_accuracy(predictions, golds):
    return best(lambda p, g: float(g != "" and g in p), normalise_english, predictions, golds, 1.0)


def token_f1(predictions, golds, verdicts=()):
    def score(prediction, gold):
        if prediction != gold and (prediction in verdicts or gold in verdicts):
            return 0.0
        found, wanted = collections.Counter(prediction.split()), collections.Counter(gold.split())
        common = (found & wanted).total()
        if common == 0:
            return 0.0
        precision, recall = common / found.total(), common / wanted.total()
        return 2 * precision * recall / (precision + recall)

    return best(score, normalise_english, predictions, golds, 0.0 if verdicts else 1.0)


def similarity(one, other):
    if not grams(one) or not grams(other):
        return 0.0
    return (set_recall(one, other) + set_recall(other, one)) / 2


def anti_consistency(answers, answer_rewards, group_ids, threshold=0.4, margin=0.5):
    texts = [normalise(answer) for answer in answers]
    out = []
    for i, group in enumerate(group_ids):
        bad = [j for j, other in enumerate(group_ids) if other == group and answer_rewards[j] < threshold]
        if i not in bad or len(bad) < 2:
            out.append(0.0)
            continue
        largest = max(similarity(texts[i], texts[j]) for j in bad if j != i)
        penalty = max(0.0, largest - margin) * min(1.0, len(bad) / 5)
        out.append(min(0.0, max(-0.5, -penalty)))
    return out


def anti_consistency_sets_once(answers, answer_rewards, group_ids, threshold=0.4, margin=0.5):
    """`anti_consistency` for benchmarks: builds every answer's set of grams once."""
    sets = [set(grams(normalise(answer))) for answer in answers]
    groups = collections.defaultdict(list)
    for i, group in enumerate(group_ids):
        if answer_rewards[i] < threshold:
            groups[group].append(i)
    largest = [0.0] * len(answers)
    weights = [0.0] * len(answers)
    for bad in groups.values():
        for i in bad:
            weights[i] = min(1.0, len(bad) / 5) if len(bad) > 1 else 0.0
        for place, i in enumerate(bad):
            for j in bad[place + 1 :]:
                common = len(sets[i] & sets[j])
                score = (common / len(sets[i]) + common / len(sets[j])) / 2 if common else 0.0
                largest[i], largest[j] = max(largest[i], score), max(largest[j], score)
    return [max(-0.5, -max(0.0, m - margin) * w) for m, w in zip(largest, weights, strict=True)]


def cost_adjusted_rewards(rewards, calls, correct, method, strength=0.1, minimum_native_correct=6):
    columns = zip(rewards, calls, correct, strict=True)
    return [adjusted_group(*group, method, strength, minimum_native_correct) for group in columns]


def adjusted_group(rewards, calls, correct, method, strength, minimum):
    members = [i for i in range(len(rewards)) if correct[i]]
    if method == "flat":
        return [reward - strength * count for reward, count in zip(rewards, calls, strict=True)]
    if method == "otc" and members:
        fewest, most = min(calls[i] for i in members), max(calls)
        return [reward * otc_factor(count, fewest, most) for reward, count in zip(rewards, calls, strict=True)]
    native = [i for i in members if calls[i] == 0]
    gated = method == "gated" and len(native) >= minimum and len(native) < len(members)
    if method == "group_relative" or gated:
        return relative_group(rewards, calls, members, strength)
    return list(rewards)


def otc_factor(count, fewest, most):
    if count == 0 and fewest == 0:
        return 1.0
    if fewest == 0:
        return math.cos(count * math.pi / (2 * count + most))
    return math.sin(2 * fewest * count / (count + fewest) * math.pi / (2 * fewest))


def relative_group(rewards, calls, members, strength):
    adjusted = list(rewards)
    if not members:
        return adjusted
    fewest, most = min(calls[i] for i in members), max(calls[i] for i in members)
    weights = [(most - calls[i]) / (most - fewest) if most > fewest else 0.0 for i in members]
    for i, weight in zip(members, weights, strict=True):
        adjusted[i] += strength * (weight - sum(weights) / len(weights))
    return adjusted
