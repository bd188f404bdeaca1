//! CPU mathematics of Pellucid: buffers, threads, matrix products, attention, norms, stored number formats. Knows no model.
