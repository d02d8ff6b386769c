//! The container: a safetensors file with sorted names, and the digest of what is in it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::Serialize;
use sha2::{Digest, Sha256};

pub(super) const DAMAGED: &str = "the file is damaged: copy it again";

/// A tensor as it lies in the file.
pub(super) struct RawTensor<'a> {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Cow<'a, [u8]>,
}

pub(super) type Tensors<'a> = BTreeMap<String, RawTensor<'a>>;
pub(super) type Strings = BTreeMap<String, String>;

/// SHA-256 of the metadata, but for the digest itself, and of the tensors. Every string and every
/// byte array goes with its length, so that no two contents give the same stream.
pub(super) fn digest(metadata: &Strings, tensors: &Tensors) -> String {
    fn number(hash: &mut Sha256, number: usize) {
        hash.update((number as u64).to_le_bytes());
    }
    fn bytes(hash: &mut Sha256, bytes: &[u8]) {
        number(hash, bytes.len());
        hash.update(bytes);
    }
    let mut hash = Sha256::new();
    let others = || metadata.iter().filter(|(key, _)| *key != "sha256");
    number(&mut hash, others().count());
    for (key, value) in others() {
        bytes(&mut hash, key.as_bytes());
        bytes(&mut hash, value.as_bytes());
    }
    number(&mut hash, tensors.len());
    for (name, tensor) in tensors {
        bytes(&mut hash, name.as_bytes());
        number(&mut hash, tensor.shape.len());
        for size in &tensor.shape {
            number(&mut hash, *size);
        }
        bytes(&mut hash, tensor.dtype.to_string().as_bytes());
        bytes(&mut hash, &tensor.bytes);
    }
    format!("{:x}", hash.finalize())
}

/// Header and data, in the order of the names. The library's own writer orders the metadata by a
/// random hash; sorted, the same contents are the same file.
pub(super) fn join(metadata: Strings, tensors: Tensors) -> serde_json::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct Header {
        #[serde(rename = "__metadata__")]
        metadata: Strings,
        #[serde(flatten)]
        tensors: BTreeMap<String, TensorInfo>,
    }
    let mut header = Header {
        metadata,
        tensors: BTreeMap::new(),
    };
    let mut data = Vec::new();
    for (name, tensor) in tensors {
        let start = data.len();
        data.extend_from_slice(&tensor.bytes);
        let info = TensorInfo {
            dtype: tensor.dtype,
            shape: tensor.shape,
            data_offsets: (start, data.len()),
        };
        header.tensors.insert(name, info);
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.append(&mut header);
    file.append(&mut data);
    Ok(file)
}

/// Metadata and tensors of a file. The header's sizes are checked here against the file's, since
/// the library's own reader adds them up without a bound.
pub(super) fn split(file: &[u8]) -> Result<(Strings, Tensors<'_>), String> {
    let (header, data) = halves(file)
        .ok_or_else(|| format!("its header does not fit in {} bytes: {DAMAGED}", file.len()))?;
    let header: Metadata = serde_json::from_slice(header)
        .map_err(|error| format!("its header is not one of safetensors ({error}): {DAMAGED}"))?;
    if header.data_len() != data.len() {
        return Err(format!(
            "its header describes {} bytes of data and there are {}: {DAMAGED}",
            header.data_len(),
            data.len()
        ));
    }
    let strings = header.metadata().iter().flatten();
    let metadata = strings.map(|(k, v)| (k.clone(), v.clone())).collect();
    let mut tensors = Tensors::new();
    for (name, info) in header.tensors() {
        let (start, end) = info.data_offsets;
        let bytes = data
            .get(start..end)
            .ok_or_else(|| format!("`{name}` lies outside the file: {DAMAGED}"))?;
        let tensor = RawTensor {
            dtype: info.dtype,
            shape: info.shape.clone(),
            bytes: Cow::Borrowed(bytes),
        };
        tensors.insert(name, tensor);
    }
    Ok((metadata, tensors))
}

/// Header and data.
fn halves(file: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = file.split_first_chunk::<8>()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
}
