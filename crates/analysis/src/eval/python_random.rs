//! The random numbers of Python's `random.Random(seed)`, so that examples of a prompt are those
//! that lm-eval chooses: Mersenne Twister (MT19937) and the algorithm of `sample`.

use std::collections::HashSet;

/// Words of the generator's state.
const WORDS: usize = 624;
/// Distance of the words that are combined.
const SHIFT: usize = 397;

/// A `random.Random`.
#[derive(Clone)]
pub(super) struct PythonRandom {
    state: [u32; WORDS],
    next: usize,
}

impl PythonRandom {
    /// Seeds with an integer, as `random.Random(seed)` does (`init_by_array` of its words).
    pub fn new(seed: u64) -> PythonRandom {
        let (low, high) = (seed as u32, (seed >> 32) as u32);
        let key = if high == 0 { vec![low] } else { vec![low, high] };
        let mut state = [0; WORDS];
        state[0] = 19_650_218;
        let mix = |word: u32| word ^ (word >> 30);
        for index in 1..WORDS {
            state[index] = 1_812_433_253_u32.wrapping_mul(mix(state[index - 1])).wrapping_add(index as u32);
        }
        let mut at = 1;
        for index in 0..WORDS.max(key.len()) {
            let word = index % key.len();
            let mixed = state[at] ^ mix(state[at - 1]).wrapping_mul(1_664_525);
            state[at] = mixed.wrapping_add(key[word]).wrapping_add(word as u32);
            at = advance(&mut state, at);
        }
        for _ in 1..WORDS {
            let mixed = state[at] ^ mix(state[at - 1]).wrapping_mul(1_566_083_941);
            state[at] = mixed.wrapping_sub(at as u32);
            at = advance(&mut state, at);
        }
        state[0] = 0x8000_0000;
        PythonRandom { state, next: WORDS }
    }

    /// Returns the next 32 bits.
    fn word(&mut self) -> u32 {
        if self.next == WORDS {
            for index in 0..WORDS {
                let upper = self.state[index] & 0x8000_0000;
                let joined = upper | (self.state[(index + 1) % WORDS] & 0x7FFF_FFFF);
                let twist = if joined & 1 == 1 { 0x9908_B0DF } else { 0 };
                self.state[index] = self.state[(index + SHIFT) % WORDS] ^ (joined >> 1) ^ twist;
            }
            self.next = 0;
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9D2C_5680;
        word ^= (word << 15) & 0xEFC6_0000;
        word ^ (word >> 18)
    }

    /// Returns a number below `end`, which is above 0 and at most 2³².
    fn below(&mut self, end: usize) -> usize {
        let bits = usize::BITS - end.leading_zeros();
        loop {
            let number = (self.word() >> (32 - bits.clamp(1, 32))) as usize;
            if number < end {
                return number;
            }
        }
    }

    /// Returns `count` different indices below `len`, as `random.sample(range(len), count)`.
    pub fn sample(&mut self, len: usize, count: usize) -> Vec<usize> {
        let count = count.min(len);
        // Python keeps a list of the population unless a set of the chosen ones is smaller.
        let set_size = 21 + if count > 5 { 4_usize.pow((count as f64 * 3.0).log(4.0).ceil() as u32) } else { 0 };
        if len <= set_size {
            let mut pool: Vec<usize> = (0..len).collect();
            let choose = |index: usize| {
                let at = self.below(len - index);
                let chosen = pool[at];
                pool[at] = pool[len - index - 1];
                chosen
            };
            return (0..count).map(choose).collect();
        }
        let mut selected = HashSet::new();
        let choose = |_| loop {
            let at = self.below(len);
            if selected.insert(at) {
                return at;
            }
        };
        (0..count).map(choose).collect()
    }
}

/// The index of the word after `at`; the first word is a copy of the last one.
fn advance(state: &mut [u32; WORDS], at: usize) -> usize {
    if at + 1 < WORDS {
        return at + 1;
    }
    state[0] = state[WORDS - 1];
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_those_of_python() {
        // random.Random(1234): three calls of sample, from a list and from a set of chosen ones.
        let mut random = PythonRandom::new(1234);
        assert_eq!(random.sample(8, 3), [7, 0, 6]);
        assert_eq!(random.sample(1000, 5), [92, 932, 965, 961, 826]);
        assert_eq!(random.sample(100, 9), [74, 4, 85, 88, 10, 12, 98, 45, 30]);
        // A seed of two words, and 1,000 calls, which twist the state.
        let mut random = PythonRandom::new(1 << 40);
        let last = (0..1000).map(|_| random.sample(50_000, 2)).last();
        assert_eq!(last.as_deref(), Some(&[19072, 5][..]));
    }
}
