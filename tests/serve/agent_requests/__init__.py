# SPDX-License-Identifier: Apache-2.0
"""Requests in the form in which coding agents send them; what they say is made up for tests.

A module for each agent has a function `requests(model)`, which lists them in the order of a
session.
"""
