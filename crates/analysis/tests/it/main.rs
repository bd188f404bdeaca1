//! Tests of the analyses against reference data.

mod steering;
