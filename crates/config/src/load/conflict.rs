//! Conflicts: two providers claim a name, a domain or an address that only one may have.
//!
//! Promises: a conflict is reported with both places. After a reload the new provider loses, never
//! the existing one.
//!
//! Never: lets two providers count one domain separately.

use std::collections::BTreeMap;

use crate::config::{Config, ListenOn};
use crate::overlay::env_name;
use crate::problem::{Place, Problem};

use super::LoadedProvider;
use super::gather::problem;

/// The first conflict: the index of the provider that loses, and the problem.
pub(super) fn first(governed: &[LoadedProvider], config: &Config) -> Option<(usize, Problem)> {
    let mut claims = Claims::default();
    for (index, one) in governed.iter().enumerate() {
        let name = env_name(&one.provider.name);
        let place = one.places.name.clone();
        let whole = Place::whole(&one.source);
        if let Some(lost) = claims.claim(
            Claim::Name(name),
            index,
            place.unwrap_or(whole.clone()),
            governed,
        ) {
            return Some(lost);
        }
        let places = one.places.domains.iter();
        for (domain, place) in one.provider.domains.iter().zip(places) {
            let claim = Claim::Domain(domain.to_string());
            let place = place_in_file(place, one);
            if let Some(lost) = claims.claim(claim, index, place, governed) {
                return Some(lost);
            }
        }
        if let Some(listen) = one.provider.listen {
            let place = one.places.listen.clone().unwrap_or(whole);
            let is_resp = config.resp == Some(ListenOn::Address(listen));
            let is_own = listen == config.listen || listen == config.admin.listen;
            if is_resp || is_own {
                return Some((
                    index,
                    problem(
                        &place,
                        match is_resp {
                            false => "the gateway or the admin address listens here too",
                            true => "the Redis protocol (`resp`) listens here too",
                        },
                        "give the provider another port",
                    ),
                ));
            }
            let claim = Claim::Listen(listen.to_string());
            if let Some(lost) = claims.claim(claim, index, place, governed) {
                return Some(lost);
            }
        }
    }
    None
}

/// Where a domain is claimed, for the reader: a domain that comes from a preset is claimed by the file that names the
/// preset. Two such files would otherwise both be called by the one place in the preset.
fn place_in_file(place: &Place, one: &LoadedProvider) -> Place {
    match place.file.starts_with("preset ") {
        true => Place::whole(&one.source),
        false => place.clone(),
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Claim {
    Name(String),
    Domain(String),
    Listen(String),
}

#[derive(Default)]
struct Claims(BTreeMap<Claim, (usize, Place)>);

impl Claims {
    fn claim(
        &mut self,
        claim: Claim,
        index: usize,
        place: Place,
        governed: &[LoadedProvider],
    ) -> Option<(usize, Problem)> {
        let Some((first, other)) = self.0.get(&claim) else {
            self.0.insert(claim, (index, place));
            return None;
        };
        // The existing provider stays; of two new ones the first stays.
        let is_fresh = |index: usize| governed.get(index).is_none_or(|one| one.is_changed);
        let (loser, at, winner) = if is_fresh(*first) && !is_fresh(index) {
            (*first, other.clone(), place)
        } else {
            (index, place, other.clone())
        };
        let (what, remedy) = match claim {
            Claim::Name(_) => (
                format!("the provider at {winner} has this name too"),
                "choose another with `name:`; `-` and `_` are the same in variables",
            ),
            Claim::Domain(domain) => (
                format!("the domain {domain} belongs to the provider at {winner} too"),
                "write all its limits into one file, or name a narrower domain",
            ),
            Claim::Listen(_) => (
                format!("the provider at {winner} listens here too"),
                "give one of them another port",
            ),
        };
        Some((loser, problem(&at, &what, remedy)))
    }
}
