"""Defects in a node's knowledge of others: the age of a HALT, nodes that are gone, and the authors of entries."""

from __future__ import annotations

from simulator.defect import Defect

PROOF_DEFECTS: tuple[Defect, ...] = (
    # The age of a HALT
    Defect(
        "the age of a HALT begins anew with each leader",
        "Ledger.halted_at",
        "min(self.halt_at, self.head_at - self.head.since_halt)",
        "self.halt_at",
        "leaders",
    ),
    Defect(
        "a leader adds nothing to the age of a HALT",
        "compose",
        "round(ledger.head.since_halt + elapsed, 6)",
        "round(elapsed, 6)",
        "leaders",
    ),
    # The end of a round
    Defect("a RESUME does not say that its round is over", "compose_resume", "mine.over", "None", "departed"),
    Defect("no leader says that a round is over", "_record_over", "view.now >= due", "False", "departed"),
    Defect(
        "a newcomer does not know that a round is over",
        "restore_ledger",
        "apply(ledger, found[index], now)",
        "apply(ledger, found[index], now) if index != at.over else replace(ledger, head=replace(head, anchors=at))",
        "departed",
    ),
    # Questions
    Defect(
        "a question is asked while one is open",
        "ask_or_report",
        "(asked := questions.open) is None",
        "(asked := questions.open) is None or view.now > questions.read_at",
        "questions",
    ),
    Defect(
        "a question of an earlier round stands",
        "apply",
        "replace(ledger.questions, open=None, reports={})",
        "replace(ledger.questions, reports={})",
        "questions",
    ),
    # Gone nodes
    Defect(
        "a proof counts while the heartbeat goes on",
        "silence_deadline",
        "node.changed_at + PROOF_HEARTBEATS * timing.beat_interval",
        "node.changed_at",
        "slots",
    ),
    Defect(
        "a proof is believed that was contradicted",
        "observe",
        "watch.distrusted | contradicted",
        "watch.distrusted",
        "slots",
        1000,
    ),
    Defect(
        "a process that outlives its warden holds no slot",
        "_outlive",
        "world.hub.at(world.hub.now + fault.span, agent.group.on_agent_exit)",
        "world.hub.at(world.hub.now + fault.span, agent.group.on_agent_exit)\nhost.release_slot(agent)",
        "slots",
    ),
    # Vouchers
    Defect(
        "a node with a voucher is gone although its heartbeat goes on",
        "LeaderView.is_proved_gone",
        "node.node_id in self.watch.gone and self.is_lost(node.node_id)",
        "node.node_id in self.watch.gone",
        "vouched",
        1000,
        first=640,
    ),
    Defect(
        "no plugin is asked for gone nodes",
        "LeaderDriver.turn",
        "self.plugins.ask_who_is_gone(silent, self.watch)",
        "pass",
        "vouched",
    ),
    Defect(
        "no leader reads which nodes were released",
        "observe",
        "(watch.gone | vouched_for) & in_order.keys()",
        "watch.gone & in_order.keys()",
        "vouched",
    ),
    # Authors
    Defect(
        "the author of an entry does not matter",
        "_check_follows",
        "_check_author(entry, head.leader)",
        "pass",
        "forgeries",
    ),
    Defect(
        "a seal of another job fits",
        "Seal._opened",
        "hmac.compare_digest(sealed, self._sealed(place, value))",
        "sealed.startswith(SEAL_PREFIX)",
        "forgeries",
    ),
    Defect(
        "a row without a seal is believed",
        "SealedBackend._opened",
        "return RosterRow.unreadable(row.node_id, str(exc))",
        "before = row, row.value[97:]",
        "forgeries",
    ),
    # Programs
    Defect(
        "another program joins",
        "program_refusal",
        "theirs.name and own.name and theirs.name != own.name",
        "False",
        "programs",
    ),
    Defect(
        "other arguments join a job without a name",
        "program_refusal",
        "unnamed and _arguments_differ(opener, mine)",
        "False",
        "programs",
    ),
    Defect(
        "a second job of one node joins one without a name",
        "Joining._check_single",
        "self.applicant.unnamed and agreement.max_nodes == 1 and not agreement.spares",
        "False",
        "programs",
    ),
    Defect(
        "the verdict on another program of the same uid is reported",
        "Joining.admit",
        "admission.program_refusal(ledger.settings, applicant.settings, unnamed=applicant.unnamed)",
        "False",
        "programs",
    ),
    # A silent node among many
    Defect(
        "a gap is as short where a look takes long",
        "contact_gap",
        "1.5 * look",
        "0.0",
        "idle_nodes",
        100,
    ),
)
