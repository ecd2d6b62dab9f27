//! Which nodes may be using a share of each limit without the store, and this node among them.
//!
//! A node that may use a share is a member. The provider's row names it, which every write compares,
//! and its own row says when it was there last: it renews that each second, and while it has lost the
//! store it does not, whatever it writes. A node that decides leaves the share of every other member
//! alone of which it does not know that it was there within four fifths of its lease.
//!
//! Promises: the shares that are left alone are at least those that are used. A member uses its share
//! no earlier than its lease, the window and `late_arrival` after its last renewal
//! (`store_loss`), and no later than [`SHARE_MAX`] after one that was confirmed. What is known of a
//! member may be old: then it was there longer ago than it was, which leaves more alone. A renewal
//! that was written on another clock says nothing.
//!
//! Never: takes a node for dead because it is silent.

use crate::ask::OwnerId;
use crate::limit::{LentShares, Rule};
use crate::row::{MEMBERS_MAX, OwnerRow, ProviderRow, ShareMember, SharePresence};
use crate::store_loss::SHARE_MAX;
use crate::time::{Micros, Span, TimeBounds, Wall};

use super::Replica;
use super::known::{KnownRow, KnownRows};
use super::row::{Reply, ReplyOutcome, Row, RowKey};

/// How often a member renews its registration, unless its lease is short.
const HEARTBEAT: Span = Span::from_secs(1);

/// How much longer than it may use its share a member's share is left alone: clocks drift.
const DRIFT: Span = Span(SHARE_MAX.0 / 100);

/// This node as a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareRegistration {
    /// The node: the same for the next process that stands in for this one, and only when this one
    /// has ended.
    pub node: u64,
    /// Of so many shares it may use one.
    pub nodes: u32,
    /// How long it counts as there after it was.
    pub lease: Span,
}

/// Where this node is as a member.
#[derive(Debug, Default)]
pub(super) struct Membership {
    wanted: Option<ShareRegistration>,
    /// It was a member, and is to be one no longer.
    is_leaving: bool,
    /// Since when it has lost the store.
    cut_off: Option<Micros>,
    /// It may have used its share, and nobody knows yet that it no longer does.
    must_return: bool,
    /// When the last renewal was sent that is stored.
    confirmed: Option<Micros>,
    /// When there was no share for it.
    refused: Option<Micros>,
    /// A renewal of it was stored once.
    was_registered: bool,
}

/// What a member may be doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberState {
    /// It has the store, or uses nothing.
    Here,
    /// The same since then.
    Returned(Micros),
    /// It may use its share until then.
    Away(Wall),
}

/// The members as one decision sees them.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberView {
    states: Vec<(u32, MemberState)>,
    /// What this node's own row is to say.
    pub(super) presence: Option<SharePresence>,
    /// Other members that have not been there for a lease, and may use their share.
    pub(super) absent: u32,
}

impl Membership {
    pub(super) fn register(&mut self, wanted: Option<ShareRegistration>) {
        if self.wanted == wanted {
            return;
        }
        self.is_leaving = wanted.is_none();
        (self.wanted, self.refused) = (wanted, None);
        if wanted.is_none() {
            self.confirmed = None;
        }
    }

    /// Has this node lost the store?
    pub(super) fn set_cut_off(&mut self, is_cut_off: bool, now: Micros) {
        if is_cut_off {
            self.cut_off.get_or_insert(now);
        } else if let Some(since) = self.cut_off.take() {
            // Sooner it has used nothing: its own wait is longer.
            let lease = self.wanted.map_or(Span::ZERO, |wanted| wanted.lease);
            self.must_return |= now.since(since) >= lease;
        }
    }

    /// When its own row must be written next.
    pub(super) fn due(&self) -> Option<Micros> {
        if self.cut_off.is_some() {
            return None;
        }
        match self.wanted {
            Some(wanted) => {
                let last = self.confirmed.max(self.refused);
                Some(last.map_or(Micros(0), |at| at + heartbeat(wanted.lease)))
            }
            None => self.is_leaving.then_some(Micros(0)),
        }
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// When the last renewal was sent that is stored.
    pub(super) fn confirmed(&self) -> Option<Micros> {
        self.confirmed
    }

    /// There is no share for it: all are taken. Or it had none that it could give up.
    pub(super) fn refuse(&mut self, now: Micros) {
        (self.refused, self.confirmed) = (Some(now), None);
        self.is_leaving = false;
    }

    /// A request that was sent then is stored; `renews`: with a renewal.
    pub(super) fn stored(&mut self, renews: bool, sent: Micros) {
        if renews {
            (self.confirmed, self.must_return) = (Some(sent), false);
            self.was_registered = true;
        }
        if self.wanted.is_none() {
            self.is_leaving = false;
        }
    }

    /// Does its own row say anything new?
    pub(super) fn renews(&self) -> bool {
        self.cut_off.is_none() && self.wanted.is_some()
    }

    /// The members as they count now. `row` gets this node, or loses it; `true`: it has changed.
    pub(super) fn view(
        &self,
        known: &KnownRows,
        row: &mut ProviderRow,
        own: (OwnerId, u64),
        now: TimeBounds,
    ) -> (MemberView, bool) {
        let mut change = MemberChange::None;
        if self.cut_off.is_none() {
            change = self.update(known, row, own, now);
        }
        let is_own = |member: &ShareMember| (member.owner, member.process) == own;
        let mut view = MemberView::default();
        for member in &row.members {
            let known = known.get(RowKey::Owner(member.owner, member.process));
            let mut state = member_state(member, known, now);
            if is_own(member) {
                let presence = self.presence(known, change, now);
                view.presence = presence;
                let returned = presence.and_then(|presence| presence.returned);
                state = returned.map_or(MemberState::Here, MemberState::Returned);
            } else {
                view.absent += u32::from(is_silent(member, known, now));
            }
            view.states.push((member.nodes, state));
        }
        (view, change != MemberChange::None)
    }

    fn update(
        &self,
        known: &KnownRows,
        row: &mut ProviderRow,
        (owner, process): (OwnerId, u64),
        now: TimeBounds,
    ) -> MemberChange {
        let Some(ShareRegistration { node, nodes, lease }) = self.wanted else {
            let before = row.members.len();
            let is_own = |one: &ShareMember| (one.owner, one.process) == (owner, process);
            row.members.retain(|one| !self.is_leaving || !is_own(one));
            return match row.members.len() == before {
                true => MemberChange::None,
                false => MemberChange::Left,
            };
        };
        let is_other = |one: &ShareMember| one.node == node && one.process != process;
        let node = match self.was_registered && row.members.iter().any(is_other) {
            // Another process stands in for this one, which has not ended: a copied state folder.
            true => node ^ process,
            false => node,
        };
        let member = ShareMember {
            node,
            owner,
            process,
            nodes,
            lease,
        };
        if let Some(own) = row.members.iter_mut().find(|one| one.node == node) {
            let before = std::mem::replace(own, member);
            return match () {
                () if before == member => MemberChange::None,
                () if before.process == process => MemberChange::Joined,
                // What the process before it has used is in no row.
                () => MemberChange::JoinedAgain,
            };
        }
        let is_over = |one: &ShareMember| {
            let known = known.get(RowKey::Owner(one.owner, one.process));
            match member_state(one, known, now) {
                MemberState::Away(until) => now.wall >= until + DRIFT,
                MemberState::Here | MemberState::Returned(_) => {
                    known.is_some_and(|known| known.row.is_none())
                }
            }
        };
        if !has_room(&row.members, nodes) {
            row.members.retain(|one| !is_over(one));
        }
        if !has_room(&row.members, nodes) {
            return MemberChange::None;
        }
        row.members.push(member);
        match self.was_registered {
            // It was lost with its row, and what it said.
            true => MemberChange::JoinedAgain,
            false => MemberChange::Joined,
        }
    }

    /// What the own row says of it.
    fn presence(
        &self,
        known: Option<&KnownRow>,
        change: MemberChange,
        now: TimeBounds,
    ) -> Option<SharePresence> {
        let row = known.and_then(|known| known.row.as_ref());
        let before = row.and_then(presence_in);
        if self.cut_off.is_some() {
            return before;
        }
        let is_comparable = known.is_some_and(KnownRow::is_comparable);
        let returned = match before.and_then(|before| before.returned) {
            _ if self.must_return || change == MemberChange::JoinedAgain => Some(now.hi),
            Some(at) if is_comparable => Some(at),
            Some(_) => Some(now.hi),
            None => None,
        };
        Some(SharePresence {
            renewed: now.lo,
            returned,
        })
    }
}

impl Replica {
    /// This node may use a share of each limit without the store, once [`Replica::registered_at`]
    /// says that the others know it; `None`: it does not any more.
    pub fn register_share(&mut self, wanted: Option<ShareRegistration>) {
        self.membership.register(wanted);
    }

    /// Has this node lost the store? While it has, nothing that it writes says that it is there.
    pub fn set_cut_off(&mut self, is_cut_off: bool, now: Micros) {
        self.membership.set_cut_off(is_cut_off, now);
    }

    /// When the last registration was sent that is stored, on the local clock. `None`: this node has no
    /// share.
    #[must_use]
    pub fn registered_at(&self) -> Option<Micros> {
        self.membership.confirmed()
    }

    /// Is this process registered, by the rows of this reply or by those that are known?
    #[must_use]
    pub fn is_registered(&self, reply: Option<&Reply>) -> bool {
        let own = (self.settings.owner, self.settings.process);
        if let Some(ReplyOutcome::Current(rows)) = reply.map(|reply| &reply.outcome) {
            let mut rows = rows.iter().filter(|(id, _)| *id == RowKey::Provider);
            let row = rows
                .next()
                .and_then(|(id, row)| Some(row.as_ref()?.read(*id)));
            return is_member(row.as_ref(), own);
        }
        let known = self.rows.get(RowKey::Provider);
        is_member(known.and_then(|known| known.row.as_ref()), own)
    }

    /// How many other nodes may use their share of the limits without the store now.
    #[must_use]
    pub fn absent(&self) -> u32 {
        self.absent
    }
}

/// What becomes of this node in the provider's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberChange {
    None,
    Joined,
    JoinedAgain,
    Left,
}

impl MemberView {
    /// What may be used of this limit by others; `counts_for`: a call that has arrived may matter for so
    /// long.
    pub(super) fn lent(&self, rule: &Rule, counts_for: Span, now: TimeBounds) -> LentShares {
        let mut lent = LentShares::default();
        if rule.is_learned() || rule.is_of_one_process() {
            return lent;
        }
        for (nodes, state) in &self.states {
            let is_lent = match *state {
                MemberState::Here => false,
                MemberState::Returned(at) => now.lo < at + counts_for,
                MemberState::Away(until) => now.wall < until + DRIFT + counts_for,
            };
            if let (true, Some(share)) = (is_lent, rule.node_share(*nodes)) {
                lent.add(&share);
            }
        }
        lent
    }
}

/// The rows of the other members, and whether one of them must be read again: what is known of it is
/// old, and leaves its share alone.
pub(super) fn member_rows(
    known: &KnownRows,
    own: (OwnerId, u64),
    now: TimeBounds,
    seen_by: Micros,
) -> (Vec<RowKey>, bool) {
    let provider = known.get(RowKey::Provider);
    let Some(Row::Provider(row)) = provider.and_then(|known| known.row.as_ref()) else {
        return (Vec::new(), false);
    };
    let mut is_old = false;
    let mut rows = Vec::new();
    for member in &row.members {
        if (member.owner, member.process) == own {
            continue;
        }
        let key = RowKey::Owner(member.owner, member.process);
        let seen = known.get(key);
        let is_away = matches!(member_state(member, seen, now), MemberState::Away(_));
        let checked_at = seen.map_or(Micros(0), |seen| seen.checked_at);
        is_old |= is_away && seen_by >= checked_at + heartbeat(member.lease);
        rows.push(key);
    }
    (rows, is_old)
}

/// Is this process a member, by this row?
fn is_member(row: Option<&Row>, own: (OwnerId, u64)) -> bool {
    let Some(Row::Provider(row)) = row else {
        return false;
    };
    let mut members = row.members.iter();
    members.any(|one| (one.owner, one.process) == own)
}

fn heartbeat(lease: Span) -> Span {
    Span(HEARTBEAT.0.min(lease.0 / 5))
}

/// Is there one more share of so many?
fn has_room(members: &[ShareMember], nodes: u32) -> bool {
    let share = |nodes: u32| (1_u128 << 64) / u128::from(nodes.max(1));
    let taken: u128 = members.iter().map(|one| share(one.nodes)).sum();
    members.len() < MEMBERS_MAX && taken + share(nodes) <= 1 << 64
}

fn presence_in(row: &Row) -> Option<SharePresence> {
    match row {
        Row::Owner(OwnerRow { presence, .. }) => *presence,
        Row::Provider(_) | Row::Cell(_) | Row::Scope(_) | Row::Damaged(_) => None,
    }
}

/// Is it known that a member has not been there for a while? One of which nothing is known yet may be.
fn is_silent(member: &ShareMember, known: Option<&KnownRow>, now: TimeBounds) -> bool {
    let Some(row) = known.and_then(|known| known.row.as_ref()) else {
        return false;
    };
    presence_in(row).is_none_or(|presence| {
        let gone_at = Wall(presence.renewed.0) + SHARE_MAX + DRIFT;
        now.hi.since(presence.renewed) > believed(member) && now.wall < gone_at
    })
}

/// For how long after a renewal a member counts as there: the rest of its lease is for requests under way.
fn believed(member: &ShareMember) -> Span {
    Span(member.lease.0 / 5 * 4)
}

/// What a member may be doing, by its row.
fn member_state(member: &ShareMember, known: Option<&KnownRow>, now: TimeBounds) -> MemberState {
    let always = MemberState::Away(Wall(u64::MAX));
    let Some(known) = known else {
        return always;
    };
    let Some(row) = &known.row else {
        // Removed by an operator, or with age.
        return MemberState::Here;
    };
    let Some(SharePresence { renewed, returned }) = presence_in(row) else {
        return always;
    };
    if !known.is_comparable() || now.hi.since(renewed) > believed(member) {
        return MemberState::Away(Wall(renewed.0) + SHARE_MAX);
    }
    returned.map_or(MemberState::Here, MemberState::Returned)
}
