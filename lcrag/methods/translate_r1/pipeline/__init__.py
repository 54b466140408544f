"""Answer-preserving translation of questions into other languages (Translate-R1, section 3.2 and appendix L).

A source is filtered, translated, checked, translated back and judged; one that a stage removes is replaced by another
source until a language has its quota. The stages are functions of the models' answers, so equal answers give equal
questions. Only `RequestCache` waits for models; it sends no request twice.

    models    requests, their cache, and models served by an endpoint or run locally
    domains   rules of each domain
    parts     the parts of a question, and the questions made of their translations
    prompts   of the translator and the judge
    checks    source filter, heuristics, verdicts, and all thresholds
    stages    translation, heuristics, back-translation and judge of one source in one language
    quotas    sources for each language, and recycling
    report    rows, counts and tables
"""
