//! How many stand ahead of a place in a line, in logarithmic time: a tree of partial sums
//! (Fenwick's) over places that are given out in order and fall empty.

/// Places 0, 1, 2 …, each taken or empty.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Item `i - 1` sums the taken places of the `i & -i` places that end with place `i - 1`.
    sums: Vec<u32>,
}

impl Places {
    /// Takes the next place.
    pub(super) fn push(&mut self) -> usize {
        let place = self.sums.len();
        let i = place + 1;
        let mut sum = 1;
        let mut step = 1;
        while step < lowest_bit(i) {
            sum += self.sums[i - step - 1];
            step *= 2;
        }
        self.sums.push(sum);
        place
    }

    /// Empties a taken place.
    pub(super) fn remove(&mut self, place: usize) {
        let mut i = place + 1;
        while i <= self.sums.len() {
            self.sums[i - 1] -= 1;
            i += lowest_bit(i);
        }
    }

    /// How many places before this one are taken.
    pub(super) fn ahead(&self, place: usize) -> usize {
        let mut ahead = 0;
        let mut i = place;
        while i > 0 {
            ahead += self.sums[i - 1] as usize;
            i -= lowest_bit(i);
        }
        ahead
    }

    /// Whether most places are empty, `taken` being taken: time to give out new ones. Every
    /// renumbering is paid for by as many pushes before it.
    pub(super) fn is_sparse(&self, taken: usize) -> bool {
        self.sums.len() > 2 * taken + 64
    }
}

fn lowest_bit(i: usize) -> usize {
    i & i.wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_ahead_is_that_of_the_taken_places_before() {
        let mut places = Places::default();
        let mut taken = Vec::new();
        for round in 0..300_usize {
            assert_eq!(places.push(), round);
            taken.push(true);
            let leaver = round * 7 % (round + 1);
            if round % 3 != 0 && std::mem::replace(&mut taken[leaver], false) {
                places.remove(leaver);
            }
            for place in 0..=round {
                let naive = taken[..place].iter().filter(|t| **t).count();
                assert_eq!(places.ahead(place), naive);
            }
        }
    }
}
