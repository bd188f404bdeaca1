//! The tools: one file and one row of the table each.

mod describe;
mod explain;
mod generate;
mod lens;
mod run;
mod sites;
mod sweep;
mod template;

use super::tool::Entry;

/// The table of tools, in the order in which an agent meets them.
pub fn table() -> Vec<Entry> {
    vec![
        Entry::of::<describe::Describe>(),
        Entry::of::<sites::Sites>(),
        Entry::of::<run::Run>(),
        Entry::of::<explain::Explain>(),
        Entry::of::<generate::Generate>(),
        Entry::of::<lens::Lens>(),
        Entry::of::<sweep::Sweep>(),
    ]
}
