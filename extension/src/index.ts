/** The plug-ins of the labextension; what they do is in the files they come from. */

import { commandsPlugin } from './commands.js';
import { settingsPlugin } from './settings.js';
import { sidebarPlugin } from './sidebar.js';
import { statusBarPlugin } from './statusbar.js';
import { untrackedPlugin } from './untracked.js';

export default [untrackedPlugin, settingsPlugin, sidebarPlugin, statusBarPlugin, commandsPlugin];
