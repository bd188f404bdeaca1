//! The performance lab: measuring workers that speak one JSON protocol.
