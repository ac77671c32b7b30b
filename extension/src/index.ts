/** The plug-ins of the labextension; what they do is in the files they come from. */

import { commandsPlugin } from './commands.js';
import { hintPlugin } from './hint.js';
import { settingsPlugin } from './settings.js';
import { sidebarPlugin } from './sidebar.js';
import { statusBarPlugin } from './statusbar.js';
import { toolbarPlugin } from './toolbar.js';
import { untrackedPlugin } from './untracked.js';

export default [
  untrackedPlugin,
  settingsPlugin,
  sidebarPlugin,
  statusBarPlugin,
  toolbarPlugin,
  hintPlugin,
  commandsPlugin
];
