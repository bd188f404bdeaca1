//! Lists of layers: `5`, `5-9`, `3,5,7`.

use std::fmt;
use std::str::FromStr;

/// Largest layer number that a list may name. Deeper models do not exist, and the limit keeps a
/// mistyped range from becoming a huge list.
const MAX_LAYER: usize = 9_999;

/// Layers in ascending order, without repetition.
///
/// ```
/// use pellucid_models::steer::LayerList;
/// let layers: LayerList = "3,5-7".parse()?;
/// assert_eq!(layers.as_slice(), [3, 5, 6, 7]);
/// assert_eq!(layers.to_string(), "3,5-7");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerList(Vec<usize>);

impl LayerList {
    /// Returns the layers.
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }
}

impl FromIterator<usize> for LayerList {
    fn from_iter<I: IntoIterator<Item = usize>>(layers: I) -> LayerList {
        let mut layers: Vec<usize> = layers.into_iter().collect();
        layers.sort_unstable();
        layers.dedup();
        LayerList(layers)
    }
}

impl FromStr for LayerList {
    type Err = String;

    fn from_str(text: &str) -> Result<LayerList, String> {
        let wrong = || format!("{text:?} is not a list of layers; write 5, 5-9 or 3,5,7");
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|&layer| layer <= MAX_LAYER);
        let mut layers = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = number(first).zip(number(last)).ok_or_else(wrong)?;
            if first > last {
                return Err(wrong());
            }
            layers.extend(first..=last);
        }
        Ok(layers.into_iter().collect())
    }
}

impl fmt::Display for LayerList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
            [one] => one.to_string(),
            [first, .., last] => format!("{first}-{last}"),
            [] => String::new(),
        });
        f.write_str(&runs.collect::<Vec<_>>().join(","))
    }
}
