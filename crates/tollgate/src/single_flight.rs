//! One asks, others wait: the mechanism behind flights, merges, logins and background refreshes.
//!
//! A [`Round`] is one operation and all callers that wait for its result. [`Leaders`] is a table of
//! open rounds by key: whoever comes first leads, and the others join or go their own way. ADR 0023
//! says who uses which part, and why.
//!
//! Promises: a round ends once, and everybody who waits hears of it, whenever they began to wait. A
//! leader that is dropped frees its key. A table has at most as many entries as its user allows.
//!
//! Never: holds a lock across an await. `join` runs under the lock of the table, and may take the
//! lock of one operation and of its demand, in this order.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use tollgate_ledger::lock_order::{RankedGuard, RankedMutex, rank};

use tokio::sync::Notify;

/// One operation and everyone who waits for its end. `S` is what callers agree on before the end,
/// `T` is the end.
#[derive(Debug)]
pub(crate) struct Round<S, T> {
    state: RankedMutex<{ rank::ROUND }, RoundState<S, T>>,
    ended: Notify,
}

/// The state of a round, under its lock.
#[derive(Debug)]
pub(crate) struct RoundState<S, T> {
    pub(crate) open: S,
    pub(crate) end: Option<T>,
}

impl<S: Default, T> Default for Round<S, T> {
    fn default() -> Round<S, T> {
        Round::new(S::default())
    }
}

impl<S, T> Round<S, T> {
    pub(crate) fn new(open: S) -> Round<S, T> {
        Round {
            state: RankedMutex::new(RoundState { open, end: None }),
            ended: Notify::new(),
        }
    }

    /// Joining and ending are decided under this lock. Whoever sets the end calls `wake` after it.
    pub(crate) fn lock(&self) -> RankedGuard<'_, RoundState<S, T>> {
        self.state.lock()
    }

    /// Ends the round; only the first end counts.
    pub(crate) fn finish(&self, end: T) {
        self.state.lock().end.get_or_insert(end);
        self.wake();
    }

    /// The end is set: everybody who waits looks at it.
    pub(crate) fn wake(&self) {
        self.ended.notify_waiters();
    }
}

impl<S, T: Clone> Round<S, T> {
    /// Waits for the end.
    pub(crate) async fn finished(&self) -> T {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if let Some(end) = &self.state.lock().end {
                return end.clone();
            }
            ended.await;
        }
    }
}

/// The open rounds, by key. Clones share them. `RANK` is their place in the order of locks.
#[derive(Debug)]
pub(crate) struct Leaders<K, V, const RANK: u8 = { rank::FLIGHTS }> {
    open: Arc<RankedMutex<RANK, HashMap<K, Arc<V>>>>,
}

/// What a newcomer may do with an open round.
#[derive(Debug)]
pub(crate) enum Join<J> {
    /// It has joined.
    Joined(J),
    /// It cannot join, and must not lead either.
    Alone,
    /// The round is over: the newcomer leads the next one.
    Over,
}

/// The role of a newcomer.
#[derive(Debug)]
pub(crate) enum Role<K: Eq + Hash, V, J, const RANK: u8 = { rank::FLIGHTS }> {
    /// It has joined.
    Follower(J),
    /// It leads.
    Leader(Leader<K, V, RANK>),
    /// Neither.
    Alone,
}

/// The right to lead. Dropped, it frees the key.
#[derive(Debug)]
pub(crate) struct Leader<K: Eq + Hash, V, const RANK: u8 = { rank::FLIGHTS }> {
    key: K,
    round: Arc<V>,
    table: Leaders<K, V, RANK>,
}

impl<K, V, const RANK: u8> Clone for Leaders<K, V, RANK> {
    fn clone(&self) -> Leaders<K, V, RANK> {
        let open = self.open.clone();
        Leaders { open }
    }
}

impl<K, V, const RANK: u8> Default for Leaders<K, V, RANK> {
    fn default() -> Leaders<K, V, RANK> {
        let open = Arc::default();
        Leaders { open }
    }
}

impl<K: Copy + Eq + Hash, V, const RANK: u8> Leaders<K, V, RANK> {
    /// Joins the open round of this key, or leads a new one unless there are `most` already.
    pub(crate) fn join_or_lead<J>(
        &self,
        key: K,
        most: usize,
        join: impl FnOnce(&Arc<V>) -> Join<J>,
        new: impl FnOnce() -> V,
    ) -> Role<K, V, J, RANK> {
        let mut open = self.open.lock();
        match open.get(&key).map(join) {
            Some(Join::Joined(joined)) => return Role::Follower(joined),
            Some(Join::Alone) => return Role::Alone,
            None if open.len() >= most => return Role::Alone,
            Some(Join::Over) | None => {}
        }
        let round = Arc::new(new());
        open.insert(key, round.clone());
        drop(open);
        let table = self.clone();
        Role::Leader(Leader { key, round, table })
    }

    /// The open round of this key.
    pub(crate) fn get(&self, key: &K) -> Option<Arc<V>> {
        self.open.lock().get(key).cloned()
    }
}

impl<K: Eq + Hash, V, const RANK: u8> Leader<K, V, RANK> {
    pub(crate) fn round(&self) -> &Arc<V> {
        &self.round
    }

    /// Frees the key: nobody finds this round any more.
    pub(crate) fn close(&self) {
        let mut open = self.table.open.lock();
        let is_this = |found: &Arc<V>| Arc::ptr_eq(found, &self.round);
        if open.get(&self.key).is_some_and(is_this) {
            open.remove(&self.key);
        }
    }
}

impl<K: Eq + Hash, V, const RANK: u8> Drop for Leader<K, V, RANK> {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rounds = Leaders<u8, Round<u32, &'static str>>;

    fn lead(rounds: &Rounds, key: u8, most: usize) -> Role<u8, Round<u32, &'static str>, ()> {
        let join = |round: &Arc<Round<u32, _>>| {
            let mut state = round.lock();
            if state.end.is_some() {
                return Join::Over;
            }
            state.open += 1;
            Join::Joined(())
        };
        rounds.join_or_lead(key, most, join, || Round::new(0))
    }

    #[tokio::test(start_paused = true)]
    async fn every_follower_gets_the_first_result() {
        let rounds = Rounds::default();
        let Role::Leader(leader) = lead(&rounds, 1, 9) else {
            panic!("nobody leads yet");
        };
        assert!(matches!(lead(&rounds, 1, 9), Role::Follower(())));
        let round = leader.round().clone();
        let waits = tokio::spawn(async move { round.finished().await });
        tokio::task::yield_now().await;
        leader.round().finish("first");
        leader.round().finish("second");
        assert_eq!(waits.await.expect("it was woken"), "first");
        assert_eq!(
            leader.round().finished().await,
            "first",
            "late, and still told"
        );
    }

    #[test]
    fn a_key_is_free_after_its_leader_and_after_the_end() {
        let rounds = Rounds::default();
        let first = lead(&rounds, 1, 1);
        assert!(
            matches!(lead(&rounds, 2, 1), Role::Alone),
            "the table is full"
        );
        drop(first);
        let Role::Leader(second) = lead(&rounds, 1, 1) else {
            panic!("the key is free");
        };
        second.round().finish("done");
        let Role::Leader(third) = lead(&rounds, 1, 1) else {
            panic!("the round is over");
        };
        drop(second);
        assert!(
            rounds.get(&1).is_some(),
            "an old leader frees only its own round"
        );
        drop(third);
        assert!(rounds.get(&1).is_none());
    }
}
