"""Published question sets in English: multi-hop and open-domain ones, in their official and in others' formats.

`sets` lists them with the files they are read from; a module a format reads their rows.
"""
