//! Memory of captures: filled line by line while readers already hold views of finished lines.
//!
//! A capture's buffer is allocated once, for all positions that its row may reach, on the heap or
//! in a memory-mapped file. The engine writes each line once. A reader sees only lines that are
//! finished, so neither side waits for the other and nothing is copied.

use crate::error::{Error, Result};
use half::bf16;
use half::slice::HalfFloatSliceExt;
use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// Element type in which captures are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureDtype {
    /// 32-bit floats: the bits that the model computed.
    #[default]
    F32,
    /// bfloat16, rounded to nearest even: half the memory. Integer sites and reduced captures stay
    /// f32.
    Bf16,
}

impl CaptureDtype {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            CaptureDtype::F32 => 4,
            CaptureDtype::Bf16 => 2,
        }
    }
}

/// A memory-mapped temporary file that has no name, so the disk space is free again as soon as the
/// last array in it is dropped, also when the process is killed.
pub(crate) struct SpillFile {
    map: MmapRaw,
}

impl SpillFile {
    /// Creates a file of `bytes` bytes in a folder, the one for temporary files if `None`.
    pub fn create(folder: Option<&Path>, bytes: usize) -> Result<Arc<SpillFile>> {
        let default = std::env::temp_dir();
        let folder = folder.unwrap_or(&default);
        let create = || -> std::io::Result<MmapRaw> {
            let file = tempfile::tempfile_in(folder)?;
            reserve(&file, bytes)?;
            MmapOptions::new().len(bytes).map_raw(&file)
        };
        let map = create().map_err(|error| {
            Error::input(
                format!("cannot store {bytes} bytes of captures in a file in {}: {error}", folder.display()),
                "free space there, choose another folder, or capture less",
            )
        })?;
        Ok(Arc::new(SpillFile { map }))
    }
}

/// Allocates the disk blocks of a file. Without it, writing to the mapping of a full disk would
/// kill the process.
fn reserve(file: &File, bytes: usize) -> std::io::Result<()> {
    file.set_len(bytes as u64)?;
    rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64).map_err(Into::into)
}

enum Memory {
    HeapF32(NonNull<[f32]>),
    HeapBf16(NonNull<[u16]>),
    File { file: Arc<SpillFile>, offset: usize, dtype: CaptureDtype },
}

/// Memory of one capture of one row.
pub(crate) struct LineStorage {
    memory: Memory,
    len: usize,
}

// SAFETY: elements are written through `write` only, whose caller guarantees that no other thread
// writes or reads them at that time; all other access is shared reading.
unsafe impl Send for LineStorage {}
// SAFETY: as above.
unsafe impl Sync for LineStorage {}

impl LineStorage {
    /// Zeros on the heap. Pages that are never written take no memory.
    pub fn heap(len: usize, dtype: CaptureDtype) -> LineStorage {
        let memory = match dtype {
            CaptureDtype::F32 => Memory::HeapF32(NonNull::from(Box::leak(vec![0.0; len].into_boxed_slice()))),
            CaptureDtype::Bf16 => Memory::HeapBf16(NonNull::from(Box::leak(vec![0; len].into_boxed_slice()))),
        };
        LineStorage { memory, len }
    }

    /// Part of a file, from a byte offset that is a multiple of 4.
    pub fn in_file(file: Arc<SpillFile>, offset: usize, len: usize, dtype: CaptureDtype) -> LineStorage {
        assert!(offset.is_multiple_of(4) && offset + len * dtype.bytes() <= file.map.len(), "a capture past its file");
        LineStorage { memory: Memory::File { file, offset, dtype }, len }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn dtype(&self) -> CaptureDtype {
        match &self.memory {
            Memory::HeapF32(_) => CaptureDtype::F32,
            Memory::HeapBf16(_) => CaptureDtype::Bf16,
            Memory::File { dtype, .. } => *dtype,
        }
    }

    fn pointer(&self) -> *mut u8 {
        match &self.memory {
            Memory::HeapF32(floats) => floats.as_ptr().cast(),
            Memory::HeapBf16(halves) => halves.as_ptr().cast(),
            // SAFETY: `in_file` has checked that the offset is inside the mapping.
            Memory::File { file, offset, .. } => unsafe { file.map.as_mut_ptr().add(*offset) },
        }
    }

    /// Writes elements from `start` on.
    ///
    /// # Safety
    /// No other thread writes these elements, and no slice of them exists.
    pub unsafe fn write(&self, start: usize, values: &[f32]) {
        assert!(start + values.len() <= self.len, "a line past the end of its capture");
        // SAFETY: the range is inside the memory, the caller is the only one that uses it, and the
        // pointer is aligned to its elements.
        unsafe {
            match self.dtype() {
                CaptureDtype::F32 => {
                    let to = self.pointer().cast::<f32>().add(start);
                    std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len());
                }
                CaptureDtype::Bf16 => {
                    let to = self.pointer().cast::<bf16>().add(start);
                    std::slice::from_raw_parts_mut(to, values.len()).convert_from_f32_slice(values);
                }
            }
        }
    }

    /// The first `count` elements, if they are f32.
    ///
    /// # Safety
    /// They have been written and are not written again.
    pub unsafe fn floats(&self, count: usize) -> Option<&[f32]> {
        assert!(count <= self.len, "a view past the end of its capture");
        // SAFETY: inside the memory, aligned, and no longer written.
        (self.dtype() == CaptureDtype::F32).then(|| unsafe { std::slice::from_raw_parts(self.pointer().cast(), count) })
    }

    /// The first `count` elements, if they are bf16.
    ///
    /// # Safety
    /// They have been written and are not written again.
    pub unsafe fn halves(&self, count: usize) -> Option<&[bf16]> {
        assert!(count <= self.len, "a view past the end of its capture");
        // SAFETY: inside the memory, aligned, and no longer written.
        (self.dtype() == CaptureDtype::Bf16)
            .then(|| unsafe { std::slice::from_raw_parts(self.pointer().cast(), count) })
    }
}

impl Drop for LineStorage {
    fn drop(&mut self) {
        match self.memory {
            // SAFETY: the pointer comes from `Box::leak` in `heap`, and nothing else frees it.
            Memory::HeapF32(floats) => drop(unsafe { Box::from_raw(floats.as_ptr()) }),
            // SAFETY: as above.
            Memory::HeapBf16(halves) => drop(unsafe { Box::from_raw(halves.as_ptr()) }),
            Memory::File { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_memories_return_what_was_written() {
        let file = SpillFile::create(None, 4096).unwrap();
        let values = [1.5, -2.0, 1.0 + 1.0 / 512.0, f32::INFINITY];
        for dtype in [CaptureDtype::F32, CaptureDtype::Bf16] {
            let rounded = values.map(|x| if dtype == CaptureDtype::F32 { x } else { bf16::from_f32(x).to_f32() });
            for storage in [LineStorage::heap(6, dtype), LineStorage::in_file(file.clone(), 64, 6, dtype)] {
                // SAFETY: the only user of the storage.
                unsafe {
                    storage.write(0, &values);
                    let read = match dtype {
                        CaptureDtype::F32 => storage.floats(4).unwrap().to_vec(),
                        CaptureDtype::Bf16 => storage.halves(4).unwrap().iter().map(|x| x.to_f32()).collect(),
                    };
                    assert_eq!(read, rounded);
                }
            }
        }
    }

    #[test]
    fn a_file_larger_than_the_disk_is_refused_before_it_is_used() {
        let error = SpillFile::create(None, 1 << 55).err().unwrap().to_string();
        assert!(error.contains("36028797018963968 bytes of captures"), "{error}");
        let error = SpillFile::create(Some(Path::new("/no/such/folder")), 64).err().unwrap().to_string();
        assert!(error.contains("/no/such/folder"), "{error}");
    }
}
