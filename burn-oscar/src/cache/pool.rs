//! Which pages are free, and how many sequences share each.

/// Reference counts of pages; the pages themselves are tensors of each layer.
#[derive(Clone, Debug)]
pub(super) struct PagePool {
    shares: Vec<u32>,
    free: Vec<u32>,
}

impl PagePool {
    pub fn new(pages: usize) -> Self {
        Self {
            shares: vec![0; pages],
            free: (0..pages as u32).rev().collect(),
        }
    }

    pub fn pages(&self) -> usize {
        self.shares.len()
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// A page of one's own. The caller has made sure that there is one.
    pub fn allocate(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        self.shares[page as usize] = 1;
        Some(page)
    }

    pub fn share(&mut self, pages: &[u32]) {
        for &page in pages {
            self.shares[page as usize] += 1;
        }
    }

    /// Gives pages back; returns those that nobody holds any more.
    pub fn release(&mut self, pages: &[u32]) -> Vec<u32> {
        let mut freed = Vec::new();
        for &page in pages {
            let shares = &mut self.shares[page as usize];
            *shares -= 1;
            if *shares == 0 {
                self.free.push(page);
                freed.push(page);
            }
        }
        freed
    }
}
