"""Published question sets in English, multi-hop and open-domain.

`sets` lists them with their files; `official` reads their official formats, `formats` those of other publishers.
"""
