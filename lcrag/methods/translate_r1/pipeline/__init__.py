"""Answer-preserving translation of questions into other languages (Translate-R1, section 3.2 and appendix L).

    texts     domains, the parts of a question, prompts, and the questions made of translations
    models    requests, their cache, and models served by an endpoint or run locally
    checks    source filter, heuristics, verdicts, and all thresholds
    stages    translation, heuristics, back-translation, judge; quotas, and recycling
    report    rows, counts and tables

Only `RequestCache` waits for models; it sends no request twice.
"""
