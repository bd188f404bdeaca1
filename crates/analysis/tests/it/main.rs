//! Tests of the analyses against reference data.

mod attribution_graph;
mod steering;
