"""Reference implementation of tool-call costs in plain Python, one group at a time, for tests and benchmarks."""

import math


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
