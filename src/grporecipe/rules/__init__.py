"""The rules on GRPO settings that hold for several frameworks: one file per topic, one declaration
per rule.

A topic is a family of codes (``GB``) or a part of one. Rules of one framework are in its folder.
Codes are permanent. ``registry`` defines what a rule is, ``helpers`` what many rules share.
`grporecipe.rules.check` applies them.
"""
