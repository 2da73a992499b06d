"""Audits: attacks that test the guarantee, and catch it when it does not hold."""

from quietgrad.audit.canaries import audit_mechanism
from quietgrad.audit.input_canaries import audit_input_canaries
from quietgrad.audit.membership import MembershipReport, success_bound, threshold_attack
from quietgrad.audit.neighbours import NeighbourReport, compare_neighbours
from quietgrad.audit.one_run import guess, one_run_epsilon, one_run_mu
from quietgrad.audit.report import AuditReport
from quietgrad.audit.run_canaries import audit_one_run
from quietgrad.audit.shadows import lira, rmia

__all__ = [
    "AuditReport",
    "MembershipReport",
    "NeighbourReport",
    "audit_input_canaries",
    "audit_mechanism",
    "audit_one_run",
    "compare_neighbours",
    "guess",
    "lira",
    "one_run_epsilon",
    "one_run_mu",
    "rmia",
    "success_bound",
    "threshold_attack",
]
