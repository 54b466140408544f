"""Answer-preserving translation of questions into other languages (Translate-R1, section 3.2 and appendix L).

`texts` has domains, the parts of a question and prompts; `models` the requests, their cache, and the models; `stages`
the filters, translation, judge, quotas and recycling, with all thresholds in `stages.Thresholds`; `report` the rows,
counts and tables. Only `RequestCache` waits for models; it sends no request twice.
"""
