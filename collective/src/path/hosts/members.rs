//! Which member of a group is on which host.

/// The leader's rank within its host.
pub(super) const LEADER: usize = 0;

/// Which member is on which host, as one of them sees it.
#[derive(Clone, Debug)]
pub(crate) struct Hosts {
    /// The members on each host, by their place in the group; the first is the leader.
    places: Vec<Vec<usize>>,
    /// This host, and this member's rank on it.
    here: usize,
    seat: usize,
}

impl Hosts {
    /// The hosts as the member at place `me` of the group sees them; it must be on one.
    pub(crate) fn new(places: Vec<Vec<usize>>, me: usize) -> Self {
        let seat = |places: &Vec<usize>| places.iter().position(|place| *place == me);
        let found = places.iter().map(seat).enumerate();
        let (here, seat) = found
            .filter_map(|(host, seat)| Some((host, seat?)))
            .next()
            .unwrap_or_default();
        Self { places, here, seat }
    }

    /// This host.
    pub(crate) fn here(&self) -> usize {
        self.here
    }

    /// This member's rank on its host.
    pub(crate) fn seat(&self) -> usize {
        self.seat
    }

    /// Whether this member is the leader of its host.
    pub(crate) fn leads(&self) -> bool {
        self.seat == LEADER
    }

    /// The members on this host, by their place in the group.
    pub(crate) fn places(&self) -> &[usize] {
        &self.places[self.here]
    }

    /// World ranks of the members on this host, given those of the group.
    pub(crate) fn ranks(&self, ranks: &[usize]) -> Vec<usize> {
        self.places().iter().map(|place| ranks[*place]).collect()
    }

    /// The members on each host, by their place in the group.
    pub(crate) fn all(&self) -> &[Vec<usize>] {
        &self.places
    }
}
