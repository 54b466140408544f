"""The methods: one folder a paper, and the baselines.

An episode program is a generator function, registered with gin, of a question and the languages of the collections.
Settings that programs share; the gin file of a method or a baseline binds its own to the macros of an experiment:

  budget: Maximum number of valid searches, after which the policy has one last turn; 0 answers without searching.
  passages: Passages of each searched language, for each search.
  observation_tokens: Maximum number of tokens that are shown of the passages of a search.
  invalid_limit: Maximum number of invalid actions; they do not count as searches.
  route: The languages that search number b goes to.
  wording: "full" for models that follow instructions, "atlas" for the built-in tiny one; any other is a `UserError`.
"""
